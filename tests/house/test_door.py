"""The door of the package: light, whole, and typed."""

import importlib.util
import subprocess
import sys

import pytest
from repository import ROOT, run, scripts

import rlzoo


def test_importing_the_package_loads_no_library(tmp_path):
    code = (
        "import sys, rlzoo; before = {'torch', 'lightning', 'transformers', 'numpy'} & {*sys.modules};"
        "rlzoo.GSPO; print(sorted(before), 'torch' in sys.modules, 'lightning' in sys.modules)"
    )
    out = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(ROOT))
    assert out.strip() == "[] True False"


def test_every_name_is_there_and_only_once():
    names = [name for found in rlzoo.DOOR.values() for name in found]
    assert len(names) == len(set(names))
    assert {*names, "GRPO", "GSPO", "CISPO", "Algorithm"} < set(rlzoo.__all__) < set(dir(rlzoo))
    assert all(getattr(rlzoo, name) is not None for name in rlzoo.__all__)


def test_what_is_not_there_is_said_without_loading_anything():
    for name in ("gspo", "GRPOO", "_private"):
        with pytest.raises(AttributeError, match=f"module 'rlzoo' has no attribute '{name}'"):
            getattr(rlzoo, name)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_users_script_is_typed(tmp_path):
    """The page's script passes mypy strictly; a wrong type, a wrong name and a class are seen."""
    text = scripts("docs/python.md")["train.py"]
    (tmp_path / "train.py").write_text(text)
    wrong = text.replace("minibatches=4", 'minibatches="4", nope=1') + "\nreveal_type(rlzoo.GSPO)\n"
    (tmp_path / "wrong.py").write_text(wrong)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "train.py",
            "wrong.py",
        ],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert "train.py:" not in done.stdout, done.stdout
    assert 'Argument "minibatches" to "RLModule" has incompatible type "str"' in done.stdout
    assert 'Unexpected keyword argument "nope" for "RLModule"' in done.stdout
    assert "rlzoo.algorithms.gspo.GSPO" in done.stdout
