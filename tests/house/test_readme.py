"""The README: its commands parse, its example runs, its table is the code's."""

import inspect
import io
import re
import shlex
from contextlib import redirect_stdout, suppress

import pytest
from repository import ONE_ITERATION, PACKAGE, ROOT, fenced, read, rlzoo, run

from rlzoo.algorithms import discover
from rlzoo.cli import main
from rlzoo.cli.commands import COMMANDS

README = read("README.md")
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES)
SHELL = [
    line
    for name in DOCUMENTS
    for block in re.findall(r"```sh\n(.*?)```", read(name), re.S)
    for line in block.splitlines()
    if line and not line.startswith("#")
]
LINES = sorted({line for line in SHELL if line.startswith("rlzoo ")})


def help_of(name):
    """Return the help of a command."""
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        main.main([name, "--help"])
    return out.getvalue()


@pytest.fixture(scope="module")
def options():
    """Return every option of every command, from its help."""
    texts = {name: help_of(name) for name in ("fit", "validate", "compare", "plan", *COMMANDS)}
    found = {name: set(re.findall(r"--[\w.]+", text)) for name, text in texts.items()}
    found["plan"] |= found["fit"]  # a plan takes what the run would
    return found


def test_the_two_commands_are_install_run_and_test():
    assert fenced(README, "<!-- commands -->", "sh") == [
        "pip install -c constraints.txt -e '.[test]'",
        "rlzoo fit --config configs/quickstart.yaml",
        "pytest",
    ]


@pytest.mark.parametrize("line", LINES)
def test_commands_and_options_exist(line, options):
    _, command, *words = shlex.split(line)
    assert command in options
    for word in words:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file()
        # What an objective adds below model.algorithm is asked of its class.
        elif word.startswith("--model.algorithm."):
            cls = discover().get(words[words.index("--model.algorithm") + 1])
            assert cls is None or word.rpartition(".")[2] in inspect.signature(cls).parameters
        elif word.startswith("--"):
            assert word.partition("=")[0].rstrip("+") in options[command]  # += adds to a list


def test_there_are_commands_to_check_and_a_wrong_one_would_be_seen(options):
    assert len(LINES) > 8
    with pytest.raises(AssertionError):
        test_commands_and_options_exist("rlzoo fit --trainer.no_such_option 1", options)
    with pytest.raises(AssertionError):
        test_commands_and_options_exist("rlzoo fit --config configs/no_such_file.yaml", options)


def rows():
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in README.splitlines()
        if re.match(r"\| `[A-Z]+\w*` \|", line)
    ]


def test_the_table_names_the_objectives_that_readers_look_for():
    assert {"PPO", "GRPO", "GSPO", "CISPO"} <= {row[0] for row in rows()}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_table_says_what_the_code_does(row):
    name, _, _, aggregation, advantage, defaults, source = row
    cls = discover()[name]
    assert (aggregation, advantage) == (cls.aggregation, cls.advantage)
    parameters = inspect.signature(cls).parameters.values()
    written = dict(re.findall(r"(\w+)=([\d.e-]+)", defaults))
    given = {p.name: p.default for p in parameters if p.default is not None}
    assert {k: float(v) for k, v in written.items()} == given
    number, equation = re.search(r"\[(\S+)\].*, (eq\. \d+)", source).groups()
    assert f"{number}, {equation}" in inspect.getdoc(cls)


def test_the_example_objective_trains(tmp_path):
    code = fenced(README, "<!-- example: my_objectives.py -->", "python")
    assert 12 <= len(code) <= 24
    (tmp_path / "my_objectives.py").write_text("\n".join(code) + "\n", encoding="utf-8")
    [line] = [line for line in LINES if "my_objectives" in line]
    words = shlex.split(line)[1:]
    words[words.index("--config") + 1] = str(ROOT / "configs" / "quickstart.yaml")
    printed = run(rlzoo(*words, *ONE_ITERATION), tmp_path)
    assert "MyObjective (floor=0.5, cap=3.0)" in printed
    assert "1 iterations" in printed
    [log] = tmp_path.glob("runs/quickstart/*/summary.json")
    assert '"algorithm": "MyObjective"' in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    text = re.sub(r"```.*?```", "", read(name), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        # The picture is drawn by a run and may not be there yet in a bare checkout.
        if not target.startswith("http") and not target.endswith(".png"):
            assert ((ROOT / name).parent / target).exists(), target


def test_every_page_is_listed():
    table = README.split("## Documentation")[1].split("\n## ")[0]
    assert sorted(re.findall(r"\]\((docs/\S+)\)", table)) == PAGES


def drawn_tree():
    """Return the paths that the README's tree draws, and whether each has a line of its own."""
    [tree] = re.findall(r"## The tree\n.*?```\n(.*?)```", README, re.S)
    found, folders = {}, []
    for line in tree.splitlines():
        indent, entry, about = re.match(r"( *)(\S+) *(.*)", line).groups()
        folders = [*folders[: len(indent) // 2], entry]
        found["".join(folders)] = about
    return found


def test_the_tree_is_there_and_whole():
    drawn = drawn_tree()
    assert all((ROOT / path).is_dir() for path in drawn)
    assert all(about for path, about in drawn.items() if path != "rlzoo/")
    packages = {f"{p.parent.relative_to(ROOT)}/" for p in PACKAGE.rglob("__init__.py")}
    assert packages <= set(drawn)


def test_the_root_of_the_package_holds_at_most_six_files():
    assert len([path for path in PACKAGE.iterdir() if path.is_file()]) <= 6


def test_the_extras_are_those_of_the_package():
    import tomllib

    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    table = README.split("## Extras")[1]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|( `.*?) \|", table, re.M)))
    assert set(named) == set(extras)
