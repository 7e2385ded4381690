"""JSON that every reader takes: NaN and infinity become null, and null reads as NaN."""

import json
import math

import pytest

from rlzoo.display.json_files import append_json_line, numbers, write_json

ODD = {"a": math.nan, "b": [math.inf, (1, -math.inf)], 3: {"c": 0.5, "d": None, "e": True}}


def refuse(word):
    raise AssertionError(f"bare {word}")


def test_a_file_is_strict_json(tmp_path):
    write_json(tmp_path / "x.json", ODD)
    found = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert found == {"a": None, "b": [None, [1, None]], "3": {"c": 0.5, "d": None, "e": True}}
    with pytest.raises(AssertionError, match="bare NaN"):  # what json writes by itself
        json.loads(json.dumps(ODD), parse_constant=refuse)


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path):
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": 2, "b": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}


def test_numbers_come_back_from_a_line(tmp_path):
    for loss in (0.5, math.nan, math.inf):
        append_json_line(tmp_path / "x.jsonl", {"iteration": 1, "loss": loss, "name": "GRPO"})
    lines = [json.loads(line, parse_constant=refuse) for line in (tmp_path / "x.jsonl").open()]
    first, *others = map(numbers, lines)
    assert first == {"iteration": 1.0, "loss": 0.5}
    for other in others:
        assert other.keys() == first.keys()
        assert math.isnan(other["loss"])
