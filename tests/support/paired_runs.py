"""One run in this process and in two, what each reward saw in it, and what it left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tiny_runs import configuration, jsonl, rlzoo

RECORDING = '''
import json
import os


def recorded(completions, prompts, answers, tag):
    """Uneven rewards; nothing for an empty answer; keeps what it saw, a file per rank."""
    rank = os.environ.get("LOCAL_RANK", "0")
    rows = [list(row) for row in zip(prompts, answers, tag, completions)]
    with open(os.environ["RECORD"] + f"-{rank}.jsonl", "a") as file:
        file.write(json.dumps(rows) + "\\n")
    return [c.count("b") + len(c) / 10 if c else None for c in completions]


def failing(completion):
    if os.environ.get("LOCAL_RANK") == "1":
        raise KeyError("units on rank one")
    return 1.0
'''

TEXTS = ("a", "ab", "abcabc", "a", "a", "cb", "a", "bacbac")  # one text stands on both ranks
EVAL = ("a", "b", "ab", "ba", "c", "cab", "bca")  # seven, so that the shares are uneven
GRPO = {"model.epochs": 2}
PPO = {
    "model.algorithm": "PPO",
    "model.advantage": {"class_path": "GAE", "init_args": {"lam": 0.9}},
    "model.minibatches": 4,
}


def write(folder, changes, more=""):
    """Write the run: uneven prompts, and a module of rewards with more of them at its end."""
    (folder / "recording.py").write_text(RECORDING + more)
    rows = [{"prompt": t, "answer": f"{i}", "tag": f"{t}/{i}"} for i, t in enumerate(TEXTS)]
    held_out = [{"prompt": t, "answer": t[0], "tag": t} for t in EVAL]
    config = configuration(
        {
            "data.task": {
                "class_path": "JsonLines",
                "init_args": {
                    "path": jsonl(folder / "train.jsonl", *map(json.dumps, rows)),
                    "eval_path": jsonl(folder / "eval.jsonl", *map(json.dumps, held_out)),
                },
            },
            "data.train_size": None,
            "data.eval_size": None,
            "data.eval_batch_size": 2,
            "model.policy.init_args.characters": "abc",
            "model.sampling.max_new_tokens": 4,
            "model.rewards": [
                {"class_path": "FunctionReward", "init_args": {"function": "recording.recorded"}}
            ],
            "model.minibatches": 2,
            "model.micro_batch_tokens": 14,
            "model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
            "model.evaluation": {"samples": 2},
            "trainer.num_sanity_val_steps": 0,
            "checkpoint": {"every_n_iterations": 1, "keep_last": 2},
            **changes,
        }
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def trained(folder, *args):
    """Train what `write` wrote, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORD", str(folder / "seen"))
        patch.delitem(sys.modules, "recording", raising=False)
        run = rlzoo(folder, "fit", "--config", "config.yaml", *args)
    assert run.code == 0, run.err
    return run


def one_process(folder, changes, *args):
    write(folder, changes)
    return trained(folder, *args)


def launched(folder, *args, timeout=120, **environment):
    """Run the command line as a launcher; if it hangs, it and its children are killed."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, "-m", "rlzoo", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        pytest.fail(f"the processes did not end within {timeout} s")
    return child.returncode, out, err


def two_processes(folder, changes, strategy=("ddp",), *args):
    write(folder, changes)
    command = ("fit", "--config", "config.yaml", "--trainer.devices", "2", *args)
    seen = str(folder / "seen")
    return launched(folder, *command, "--trainer.strategy", *strategy, RECORD=seen)


class Pair:
    def __init__(self, folder, changes, strategy=("ddp",)):
        self.folder = folder
        for name in ("one", "two"):
            (folder / name).mkdir()
        self.one = one_process(folder / "one", changes)
        code, _, self.err = two_processes(folder / "two", changes, strategy)
        assert code == 0, self.err
        self.log = folder / "two" / "runs" / "tiny" / "version_0"

    def saved(self, which, iteration=2):
        path = f"checkpoints/iteration-{iteration:06d}.ckpt"
        folder = self.one.folder if which == "one" else self.log
        return torch.load(folder / path, weights_only=True)

    def seen(self, which, rank):
        lines = (self.folder / which / f"seen-{rank}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def training(self, which, rank):
        """Calls with training rows; those of the evaluation are tagged otherwise."""
        return [rows for rows in self.seen(which, rank) if "/" in rows[0][2]]
