"""Runs of the command line in one of several processes: ``sharded_runs.py jobs.json``.

A job is a folder, arguments and what to look at afterwards; the libraries are imported once.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path


def launch(jobs, folder, world=2, timeout=270):
    """Start the processes, wait, and return what every job left behind, per process."""
    import socket

    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "OMP_NUM_THREADS": "1",
        "RLZOO_CACHE": str(folder / "cache"),
        "DS_ACCELERATOR": "cpu",
        "CC": "/nonexistent",  # a native op that were built would fail
        "CXX": "/nonexistent",
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        ),
    }
    children = []
    for rank in range(world):
        log = (folder / f"log-{rank}.txt").open("w")
        env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, __file__, str(file)]
        children.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    try:
        for child in children:
            child.wait(timeout)
    finally:
        for child in children:
            child.kill()
    logs = [(folder / f"log-{rank}.txt").read_text() for rank in range(world)]
    assert not any(child.returncode for child in children), "\n".join(log[-4000:] for log in logs)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(world)]


def counted(policy):
    """Count the forward passes of a policy's model."""
    counts = {"passes": 0}

    def count(*_):
        counts["passes"] += 1

    policy.causal_lm.base_model.register_forward_hook(count)
    return counts


def perform(job):
    """Run one job in this process."""
    from rlzoo.cli.commands.fit import lightning_command
    from rlzoo.errors import UserError
    from rlzoo.training.module import RLModule

    os.chdir(job["folder"])
    os.environ["RECORD"] = str(Path(job["folder"]) / "seen")
    found, counts, start = {}, [], RLModule.on_fit_start

    def watch(self):
        counts.append(counted(self.policy))
        experts = getattr(self.policy.causal_lm.model.layers[0].mlp, "experts", None)
        w2 = getattr(experts, "w2", None)
        if w2 is not None:
            found["shape"], found["sum"] = list(w2.shape), float(w2.double().sum())

    RLModule.on_fit_start = watch
    sys.modules.pop("recording", None)
    try:
        run = lightning_command(job["args"])
    except UserError as error:
        return {"refused": str(error)}
    finally:
        RLModule.on_fit_start = start
    found["passes"] = sum(count["passes"] for count in counts)
    found["metrics"] = {k: float(v) for k, v in run.trainer.logged_metrics.items()}
    return found


def main(file):
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, "")
    from rlzoo.cli import jsonargparse_internals, main

    main.quiet()
    jsonargparse_internals.install()
    jobs = json.loads(Path(file).read_text())
    found = []
    for job in jobs:
        try:
            found.append(perform(job))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    rank = os.environ["RANK"]
    (Path(file).parent / f"found-{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
