"""What rlzoo uses of other libraries without their promise: each part is looked for by itself."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomllib
from lightning.pytorch.cli import LightningCLI

from rlzoo.cli import jsonargparse_internals
from rlzoo.cli.jsonargparse_internals import PARTS, REMEDIES
from rlzoo.errors import UserError

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
ALL = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)


@ALL
def test_the_installed_version_has(part):
    part.check()


@ALL
def test_a_version_without_it_is_refused_by_name(part, monkeypatch):
    name = part.name.rpartition(".")[2]
    if part.name.startswith("_typehints"):
        monkeypatch.delattr(f"jsonargparse.{part.name}")
    elif part.name.startswith("LightningCLI"):
        monkeypatch.delattr(LightningCLI, name)
    else:
        monkeypatch.setattr(jsonargparse_internals, "ArgumentParser", SimpleNamespace)
    with pytest.raises(UserError) as refused:
        jsonargparse_internals.check_parts()
    said = str(refused.value)
    assert f"{part.library} {version(part.library)} has no {part.name}" in said
    assert part.use in said
    assert said.endswith(REMEDIES[part.library])
    assert "\n" not in said


def test_a_command_of_another_version_ends_in_one_line():
    code = "from jsonargparse import _typehints\n"
    code += "del _typehints.discard_init_args_on_class_path_change\n"
    code += "from rlzoo.__main__ import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "algorithms"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (2, "")
    [line] = run.stderr.splitlines()
    assert line.startswith("rlzoo: error: jsonargparse ")


def test_the_remedies_are_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [wanted] = [line for line in project["dependencies"] if line.startswith("jsonargparse")]
    assert REMEDIES["jsonargparse"] == f"pip install '{wanted}'"
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert REMEDIES["lightning"].removeprefix("pip install ") in pinned


def test_no_other_file_reaches_for_private_parts():
    names = ("_typehints", "._actions", "._parser(", "_subcommand_parsers")
    for path in (ROOT / "rlzoo").rglob("*.py"):
        if path.name != "jsonargparse_internals.py":
            text = path.read_text()
            assert not [name for name in names if name in text], path
