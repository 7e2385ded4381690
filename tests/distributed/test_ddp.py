"""Two processes train like one: weights, losses, held-out figures; and each samples its own share."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from tiny_runs import configuration, curves_of, jsonl, rlzoo

pytestmark = pytest.mark.timeout(200)

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


def write(folder, changes):
    (folder / "recording.py").write_text(RECORDING)
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


def one_process(folder, changes, *args):
    write(folder, changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORD", str(folder / "seen"))
        patch.delitem(sys.modules, "recording", raising=False)
        run = rlzoo(folder, "fit", "--config", "config.yaml", *args)
    assert run.code == 0, run.err
    return run


def two_processes(folder, changes, strategy=("ddp",), *args):
    """Start the launcher; if it hangs, it and its children are killed and the test fails."""
    write(folder, changes)
    command = ["fit", "--config", "config.yaml", "--trainer.devices", "2", *args]
    child = subprocess.Popen(
        [sys.executable, "-m", "rlzoo", *command, "--trainer.strategy", *strategy],
        cwd=folder,
        env={**os.environ, "RECORD": str(folder / "seen"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        pytest.fail("two processes did not end within 120 s")
    return child.returncode, out, err


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


@pytest.fixture(scope="module", params=["GRPO", pytest.param("PPO", marks=pytest.mark.slow)])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"ddp{request.param}")
    return Pair(folder, {"GRPO": GRPO, "PPO": PPO}[request.param])


def test_weights_are_equal(pair):
    """DIST-02, DIST-03: uneven answers in micro-batches of a few tokens, SGD."""
    one, two = pair.saved("one"), pair.saved("two")
    assert one["state_dict"].keys() == two["state_dict"].keys()
    for name, value in one["state_dict"].items():
        assert (value - two["state_dict"][name]).abs().max() <= 1e-5, name
    first = pair.saved("one", 1)["state_dict"]
    assert max((one["state_dict"][k] - first[k]).abs().max() for k in first) > 1e-3
    assert one["rlzoo"]["progress"]["tokens"] == two["rlzoo"]["progress"]["tokens"]
    assert len(two["rlzoo"]["rng"]) == 2


def test_logged_values_are_equal(pair):
    one, two = pair.one.curves(), curves_of(pair.log)
    assert one.keys() == two.keys()
    for tag, points in one.items():
        if tag.startswith("time/") or tag.endswith("per_s"):
            continue
        assert [step for step, _ in two[tag]] == [step for step, _ in points], tag
        assert [v for _, v in two[tag]] == pytest.approx([v for _, v in points], abs=1e-6), tag
    assert len(one["policy/loss"]) == 2
    assert one["reward/abstained"][0][1] > 0


def test_counts_of_micro_batches_differ_over_ranks(pair):
    """The case that hangs a naive loop is in these runs."""
    prompts = {text: len(text) for text in TEXTS}
    work = []
    for rank in range(2):
        rows = pair.training("two", rank)[0]
        work.append(sorted(prompts[p] + len(c) for p, _, _, c in rows))
    assert work[0] != work[1]


def test_ranks_sample_disjoint_shares_of_one_batch(pair):
    """DIST-04, REW-07: together they are what one process samples, row by row."""
    for step in range(2):
        whole = pair.training("one", 0)[step]
        shares = [pair.training("two", rank)[step] for rank in range(2)]
        assert [len(share) for share in shares] == [8, 8]
        tags = [{tag for _, _, tag, _ in share} for share in shares]
        assert not tags[0] & tags[1]
        groups = [whole[i : i + 4] for i in range(0, 16, 4)]
        assert shares[0] == groups[0] + groups[2]
        assert shares[1] == groups[1] + groups[3]
        for share in shares:
            for prompt, answer, tag, _ in share:
                assert tag == f"{prompt}/{answer}"


def test_one_text_on_two_ranks_gets_different_answers(pair):
    answers = [{}, {}]
    for rank in range(2):
        for rows in pair.training("two", rank):
            for prompt, _, tag, completion in rows:
                if prompt == "a":
                    answers[rank].setdefault(tag, []).append(completion)
    groups = [group for mine in answers for group in mine.values()]
    assert all(answers)
    assert len({tuple(group) for group in groups}) == len(groups) == 4


def test_every_held_out_prompt_is_answered_once(pair):
    seen = []
    for rank in range(2):
        seen += [
            prompt
            for rows in pair.seen("two", rank)
            for prompt, _, tag, _ in rows
            if "/" not in tag
        ]
    assert sorted(seen) == sorted(EVAL * 3)  # two sampled answers and a greedy one


def test_only_the_first_rank_speaks(pair):
    assert pair.err.count("plan: 2 iterations") == 1
    assert pair.err.count("held-out accuracy: sampled") == 1
    assert "Traceback" not in pair.err


def test_checkpoint_of_two_ranks_goes_on_in_one(pair):
    """RES-03."""
    path = str(pair.log / "checkpoints" / "iteration-000001.ckpt")
    changes = yaml.safe_load((pair.folder / "one" / "config.yaml").read_text())
    folder = pair.folder / "again"
    folder.mkdir()
    kind = PPO if changes["model"].get("algorithm") == "PPO" else GRPO
    again = one_process(folder, kind, "--ckpt_path", path)
    for name, value in pair.saved("one")["state_dict"].items():
        assert (value - again.module.state_dict()[name]).abs().max() <= 1e-5, name


@pytest.mark.slow
def test_bfloat16_is_near(tmp_path):
    """Gradients are reduced in bfloat16, and moved in float32 as in one process."""
    dtype = {"model.policy.init_args.dtype": "bfloat16"}
    pair = Pair(tmp_path, {**GRPO, **dtype})

    def values(which, iteration):
        saved = pair.saved(which, iteration)
        weights = [w for name, w in saved["state_dict"].items() if "lm_head" not in name]  # tied
        rests = saved["optimizer_states"][0]["masters"]
        assert [w.shape for w in weights] == [rest.shape for rest in rests]
        high = torch.cat([w.view(torch.int16).flatten().int() for w in weights]) << 16
        low = torch.cat([rest.flatten().int() & 0xFFFF for rest in rests])
        return (high + low - 2**15).view(torch.float32)

    moved = (values("one", 2) - values("one", 1)).norm()
    assert moved > 1e-3
    assert (values("one", 1) - values("two", 1)).norm() < 0.05 * moved
    assert values("two", 1).bfloat16().float().ne(values("two", 1)).any()


@pytest.mark.slow
def test_a_reward_that_fails_on_one_rank_ends_both(tmp_path):
    """DIST-05."""
    spec = {"class_path": "FunctionReward", "init_args": {"function": "recording.failing"}}
    code, _, err = two_processes(tmp_path, {"model.rewards": [spec]})
    assert code != 0
    assert "reward 'failing' failed on row 0: KeyError: 'units on rank one'" in err
