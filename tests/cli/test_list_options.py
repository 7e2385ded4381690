"""Settings that are lists: one item alone is answered by how to write it, and that way works."""

import collections.abc
import dataclasses
from typing import get_args, get_origin, get_type_hints

import pytest
import yaml
from tiny_runs import REMOVE, configuration

from rlzoo.cli.messages import FAMILIES, LISTS, class_names
from rlzoo.training.settings import Settings

pytestmark = pytest.mark.timeout(60)

HINTS = get_type_hints(Settings)
FOUND = [
    field.name
    for field in dataclasses.fields(Settings)
    if get_origin(HINTS[field.name]) in (list, tuple, collections.abc.Sequence)
]
ALL = pytest.mark.parametrize("name", FOUND)


def test_there_are_lists_to_check():
    assert {"filters", "rewards"} <= set(FOUND)
    assert {f"model.{name}" for name in FOUND} == LISTS


@ALL
@pytest.mark.parametrize("item", ["mine.DropLong", "MaskTruncated"])
def test_one_item_alone_is_answered_by_how_to_add_it(refused, name, item):
    line = refused(None, f"--model.{name}", item)
    assert line == (
        f"rlzoo: error: model.{name}: it is a list; write --model.{name}+={item}, "
        f"or [{item}] in a file"
    )


@ALL
@pytest.mark.parametrize("item", ["mine.DropLong", {"class_path": "mine.DropLong"}])
def test_one_item_alone_in_a_file_is_answered(refused, name, item):
    assert f"model.{name}: it is a list; " in refused({f"model.{name}": item})


@ALL
def test_what_the_answer_says_is_accepted(command, tmp_path, name):
    """The first class of each kind, added to the list and written into it."""
    [base] = get_args(HINTS[name])
    assert FAMILIES[f"model.{name}"] is base
    item = {"rewards": "ExactMatch", "filters": "MaskTruncated"}.get(name, class_names(base)[0])
    for number, (change, args) in enumerate(
        [(REMOVE if name == "rewards" else [], [f"--model.{name}+={item}"]), ([item], [])]
    ):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(configuration({f"model.{name}": change})))
        run = command("fit", "--config", str(file), *args, "--print_config")
        assert run.code == 0, run.err
        [given] = yaml.safe_load(run.out)["model"][name]
        assert given["class_path"].endswith(f".{item}")
