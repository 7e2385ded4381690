"""Tables are plain text that a user can grep."""

from unittest import mock

import pytest

from rlzoo.display.tables import aligned, show

pytestmark = pytest.mark.timeout(30)

ROWS = [("name", "size", "how"), ("a", "10.25", "two words"), ("longer", "1", "")]


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned(ROWS, "lrl") == [
        "name     size  how",
        "a       10.25  two words",
        "longer      1",
    ]


def test_the_last_side_stands_for_all_that_follow():
    assert aligned(ROWS) == aligned(ROWS, "lrr")
    assert aligned(ROWS, "l") == aligned(ROWS, "lll") != aligned(ROWS)


def test_columns_are_at_least_as_wide_as_asked():
    assert aligned([("a", "b"), ("cd", "e")], "lr", least=(4, 3)) == ["a       b", "cd      e"]


def test_no_line_is_wrapped_and_no_cell_is_taken_for_markup():
    cells = ("x" * 5_000, "[red]y[/red] :smile: [cut]")
    assert aligned([cells]) == ["  ".join(cells)]


def test_spaces_that_lead_a_cell_are_kept():
    assert aligned([("  in", "1"), ("out", "2")]) == ["  in  1", "out   2"]


def test_a_pipe_gets_whole_cells(capsys):
    cell = "S31452= [cut] " + "word " * 60 + "end"
    show("answers [at] 3", ("prompt", "[header]"), [(cell, "b")])
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == "answers [at] 3"
    assert "[header]" in out
    assert cell in out
    assert "\x1b" not in out


def test_a_terminal_gets_folded_cells(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with mock.patch("sys.stdout.isatty", return_value=True):
        show("answers", ("prompt",), [("x" * 100,)])
    folded = [line for line in capsys.readouterr().out.splitlines() if "x" in line]
    assert [len(line) for line in folded] == [40] * 3
    assert "".join(folded).count("x") == 100
