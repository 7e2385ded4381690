"""A constructor that takes the fields of a dataclass."""

import inspect
from dataclasses import dataclass, field

import pytest
from jsonargparse import ArgumentParser

from rlzoo.configuration.fields import takes_fields_of


@dataclass(frozen=True)
class Options:
    """Options.

    Args:
        size: How large.
        names: What they are called.
    """

    size: int
    names: list[str] = field(default_factory=list)


class Thing:
    """A thing."""

    @takes_fields_of(Options)
    def __init__(self, options):
        self.options = options


def test_fields_are_the_arguments():
    assert Thing(3).options == Options(3)
    assert Thing(size=3, names=["a"]).options == Options(3, ["a"])
    assert list(inspect.signature(Thing).parameters) == ["size", "names"]
    with pytest.raises(TypeError, match="nope"):
        Thing(3, nope=1)


def test_defaults_are_not_shared():
    Thing(1).options.names.append("a")
    assert Thing(2).options.names == []


def test_they_are_options_with_the_help_of_the_dataclass(capsys):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Thing, "thing")
    made = parser.instantiate(parser.parse_args(["--thing.size=4", "--thing.names=[x]"]))
    assert made.thing.options == Options(4, ["x"])
    assert "How large." in parser.format_help()
