"""Two processes train like one: weights, losses, held-out figures; and each samples its own share."""

import pytest
import torch
import yaml
from paired_runs import EVAL, GRPO, PPO, TEXTS, Pair, one_process, two_processes
from tiny_runs import curves_of

pytestmark = pytest.mark.timeout(200)


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
