"""Where things are, and how the tests of the house read them."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rlzoo"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def fenced(text, marker, language):
    """Return the lines of the fenced block below a marker."""
    found = re.search(rf"^{re.escape(marker)}\n```{language}\n(.*?)^```$", text, re.M | re.S)
    assert found, f"no {language} block below {marker}"
    return found[1].splitlines()


ONE_ITERATION = (
    "--model.cold_start=null",
    "--trainer.limit_train_batches=1",
    "--trainer.limit_val_batches=0",
    "--trainer.val_check_interval=1.0",
    "--trainer.num_sanity_val_steps=0",
    "--data.prompts_per_iteration=4",
    "--data.train_size=4",
    "--data.eval_size=4",
)


def run(command, folder, **environment):
    """Run a command in a folder, quietly and with a cache of its own."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "RLZOO_CACHE": str(folder / "cache"),
        "RLZOO_TRACEBACK": "1",
        **environment,
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def rlzoo(*words):
    """Return the command line of rlzoo under this interpreter."""
    return [sys.executable, "-m", "rlzoo", *words]


def scripts(page):
    """Return the scripts of a page, by file name."""
    found = re.findall(r"<!-- script: (\S+) -->\n```python\n(.*?)```\n", read(page), re.S)
    assert found
    return dict(found)
