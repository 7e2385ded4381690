"""The pages on Python: their scripts and commands run as they stand."""

import re
import sys

import pytest
from repository import ROOT, read, run, scripts


def commands(page):
    """Return the lines of a page's shell blocks, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", read(page), re.S)
    lines = "".join(blocks).splitlines()
    return [line.partition("#")[0].split() for line in lines if line.strip()]


def within(tmp_path, *words):
    return run([sys.executable, *words], tmp_path, PYTHONPATH=str(ROOT), RLZOO_TRACEBACK="")


def test_the_script_has_at_most_25_lines_and_trains(tmp_path):
    found = scripts("docs/python.md")
    assert len(found["train.py"].splitlines()) <= 25
    for name, text in found.items():
        (tmp_path / name).write_text(text)
    out = within(tmp_path, "train.py")
    before, after = re.search(r"held-out accuracy: sampled (\S+) -> (\S+),", out).groups()
    assert float(after) > float(before)
    folder, names = re.search(r"^summary, .*: (\S+)/\{(.*)\}$", out, re.M).groups()
    assert "checkpoints" in names
    assert all(any((tmp_path / folder).glob(name)) for name in names.split(", "))
    shown = [line.split() for line in within(tmp_path, "prompts.py").splitlines()]
    assert len(shown) == 8
    assert all("".join(sorted(text[1:-1])) == target for text, target in shown)


@pytest.mark.slow
def test_parts_of_ones_own_train_resume_and_are_read_by_the_commands(tmp_path):
    for name, text in scripts("docs/python_parts.md").items():
        (tmp_path / name).write_text(text)
    lines = [words for words in commands("docs/python_parts.md") if words[0] == "python"]
    alone = within(tmp_path, *lines[0][1:])
    two = within(tmp_path, *lines[1][1:])
    numbers = re.findall(r"reward (\S+) next (\S+)", alone)
    assert len(numbers) == 2
    assert [float(t) for _, t in numbers] == pytest.approx([0.9, 0.81])
    assert re.findall(r"reward (\S+) next (\S+)", two) == numbers
    assert len(re.findall("reward", within(tmp_path, *lines[2][1:]))) == 2
    loaded = within(tmp_path, "load.py")
    assert loaded.startswith("SoftGSPO 0.1 (")
    shell = [words for words in commands("docs/python_parts.md") if words[0] == "rlzoo"]
    generated, _, inspected = (
        within(tmp_path, "-m", "rlzoo", *[w.strip('"') for w in words[1:]]) for words in shell
    )
    assert loaded.split("'")[1] in generated
    assert "SoftGSPO" in inspected
    assert (tmp_path / "exported" / "config.json").is_file()
