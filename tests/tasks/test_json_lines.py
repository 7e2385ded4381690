"""Tasks read from files."""

import json

import pytest

from rlzoo.errors import UserError
from rlzoo.tasks import JsonLines


def write(folder, *rows, name="data.jsonl"):
    path = folder / name
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return str(path)


def read(path, **options):
    return JsonLines(path, **{"eval_path": path, **options}).examples("train", None, 0)


@pytest.mark.parametrize(
    ("answer", "text"), [(4, "4"), (-1.5, "-1.5"), (True, "true"), ("x y", "x y"), ("", "")]
)
def test_data_02_answers_become_text(tmp_path, answer, text):
    """DATA-02."""
    (example,) = read(write(tmp_path, {"prompt": "2+2=", "answer": answer, "level": 3}))
    assert (example.prompt, example.target) == ("2+2=", text)
    assert example.columns == {"level": 3}


GOOD = {"prompt": "2+2=", "answer": 4}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "1+1=", "answer": None}, "row 3: column 'answer' is null"),
        ({"prompt": None, "answer": 2}, "row 3: column 'prompt' is null"),
        ({"prompt": "1+1=", "answer": [2]}, "row 3: column 'answer' is a list"),
        ({"prompt": "", "answer": 2}, "row 3: column 'prompt' is empty"),
        ({"prompt": [], "answer": 2}, "row 3: column 'prompt' is empty"),
        ({"prompt": 12, "answer": 2}, "row 3: column 'prompt' is a int"),
        ({"prompt": [{"role": "user"}], "answer": 2}, "row 3: column 'prompt' is a list"),
        (
            {"question": "1+1=", "answer": 2, "id": 1},
            "row 3: no column 'prompt'; present: answer, id, question",
        ),
        ({}, "row 3: no column 'prompt'; present: none"),
        ('{"prompt": "1+1=", "answer": 2', "row 3: not JSON"),
        ("[1, 2]", "row 3: a list, not an object"),
    ],
)
def test_data_02_a_bad_row_is_named(tmp_path, row, said):
    """DATA-02: rows are counted as lines, blank ones included."""
    with pytest.raises(UserError, match=said) as info:
        read(write(tmp_path, GOOD, "", row))
    assert "\n" not in str(info.value)
    assert "data.jsonl" in str(info.value)


def test_data_01_an_empty_file_is_an_error(tmp_path):
    """DATA-01."""
    with pytest.raises(UserError, match=r"data\.jsonl: has no rows"):
        read(write(tmp_path, "", "  "))


def test_data_01_nothing_left_for_a_split_says_how_many(tmp_path):
    """DATA-01."""
    path = write(tmp_path, GOOD, GOOD, GOOD)
    with pytest.raises(UserError, match=r"eval_fraction=0\.0 leaves none of its 3 rows .* eval"):
        JsonLines(path, eval_fraction=0.0).examples("eval", None, 0)


def test_missing_file_is_an_error_at_once(tmp_path):
    with pytest.raises(UserError, match=r"JsonLines\.path='nowhere\.jsonl': no such file"):
        JsonLines("nowhere.jsonl")
    with pytest.raises(UserError, match=r"JsonLines\.eval_path="):
        JsonLines(write(tmp_path, GOOD), eval_path=str(tmp_path))


def test_chat_prompts_and_other_column_names(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    path = write(tmp_path, {"chat": messages, "gold": 4})
    (example,) = read(path, prompt="chat", answer="gold")
    assert example.prompt == tuple(messages)
    assert example.target == "4"


def test_answer_after(tmp_path):
    path = write(tmp_path, {"prompt": "x", "answer": "2+2 #### no\n#### 4 "})
    assert read(path, answer_after="####")[0].target == "4"
    with pytest.raises(UserError, match=r"row 1: column 'answer' does not contain '@@'"):
        read(path, answer_after="@@")


def numbered(count):
    return [{"prompt": f"{i}+{i % 7}=", "answer": i + i % 7} for i in range(count)]


def test_held_out_share_is_by_prompt_and_stable(tmp_path):
    path = write(tmp_path, *numbered(500), *numbered(500))
    task = JsonLines(path, eval_fraction=0.2)
    train = task.examples("train", None, 0)
    held_out = task.examples("eval", None, 1)
    assert len(train) + len(held_out) == 1000
    assert not {e.prompt for e in train} & {e.prompt for e in held_out}
    assert 150 < len(held_out) < 250
    shuffled = write(tmp_path, *reversed(numbered(500)), name="other.jsonl")
    again = JsonLines(shuffled, eval_fraction=0.2).examples("eval", None, 0)
    assert {e.prompt for e in again} == {e.prompt for e in held_out}


def test_eval_path_leaves_all_rows_for_training(tmp_path):
    other = write(tmp_path, {"prompt": "q", "answer": 1}, name="eval.jsonl")
    task = JsonLines(write(tmp_path, *numbered(20)), eval_path=other)
    assert len(task.examples("train", None, 0)) == 20
    assert [e.prompt for e in task.examples("eval", None, 0)] == ["q"]


def test_size_is_a_seeded_choice_in_file_order(tmp_path):
    path = write(tmp_path, *numbered(50))
    task = JsonLines(path, eval_path=path)
    rows = task.examples("train", None, 0)
    chosen = task.examples("train", 10, 0)
    assert [row for row in rows if row in chosen] == chosen
    assert len(chosen) == 10
    assert chosen == task.examples("train", 10, 0)
    assert chosen != task.examples("train", 10, 1)
    with pytest.raises(UserError, match=r"data\.train_size=51: .* has only 50 rows"):
        task.examples("train", 51, 0)


def test_alphabet_has_the_characters_of_the_file(tmp_path):
    chat = [{"role": "user", "content": "\u00e9?"}]
    path = write(
        tmp_path, {"prompt": "\u00fcber", "answer": "\u03c0"}, {"prompt": chat, "answer": 1}
    )
    alphabet = JsonLines(path, eval_path=path).alphabet
    assert {"a", "Z", "0", "\n", "\u00fc", "\u03c0", "\u00e9"} <= set(alphabet)
    assert len(set(alphabet)) == len(alphabet)


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_eval_fraction_is_checked(tmp_path, fraction):
    with pytest.raises(UserError, match=r"JsonLines\.eval_fraction="):
        JsonLines(write(tmp_path, GOOD), eval_fraction=fraction)
