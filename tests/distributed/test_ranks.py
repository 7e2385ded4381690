"""Two gloo processes give what one gives: counts, advantages, minibatches, gradients, metrics.

Every check runs once in one process and once in two; the processes are started once.
"""

from contextlib import contextmanager, nullcontext
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import of_ranks

from rlzoo import distributed
from rlzoo.advantages import GAE, GroupCentered, GroupNormalized, LeaveOneOut, Outcome, whiten
from rlzoo.algorithms import PPO, discover
from rlzoo.objective.loss import KLPenalty, policy_loss, value_loss
from rlzoo.ops import Aggregation, Denominators
from rlzoo.rollout import NativeSampler
from rlzoo.training.minibatches import micro_batches, minibatches
from rlzoo.types import Experience, PolicyBatch, Prompt, Prompts, Rollouts, SamplingParams
from rlzoo.types.stats import Stats, over_ranks

WORLD, P, G, T = 2, 4, 2, 12
LENGTHS = (1, 12, 3, 2, 0, 7, 12, 5)  # answers, in the order of the prompts: uneven over ranks
PROMPT_LENGTHS = (2, 5, 3, 2)
AGGREGATIONS = get_args(Aggregation)


def share(rank, world):
    """This rank's rows: the prompts at positions rank, rank + world, ..."""
    return [p * G + g for p in range(P) if p % world == rank for g in range(G)]


def data(rank, world):
    """Experience of one rank, and the fields of its batch, cut out of one global draw."""
    rng = torch.Generator().manual_seed(11)
    rows = share(rank, world)
    positions = sorted({row // G for row in rows})
    mask = (torch.arange(T) < torch.tensor(LENGTHS)[:, None])[rows]

    def normal(*shape):
        return torch.randn(*shape, generator=rng)[rows]

    old = -normal(P * G, T).abs() - 0.1
    fields = {
        "old_log_probs": old,
        "rollout_log_probs": old + 0.05 * normal(P * G, T),
        "ref_log_probs": old + 0.3 * normal(P * G, T),
        "advantages": normal(P * G, T),
        "token_ids": torch.arange(P * G * T).view(P * G, T)[rows],
        "group_ids": torch.tensor(rows) // G,
        "features": 0.1 * normal(P * G, T, 3),
        "scores": normal(P * G).round(decimals=1),
    }
    fields = {k: v.where(mask, torch.nan) if k in ("advantages",) else v for k, v in fields.items()}
    rollouts = Rollouts(
        prompts=Prompts(
            tuple(Prompt((1,) * PROMPT_LENGTHS[p], "") for p in positions), tuple(positions)
        ),
        params=SamplingParams(),
        group_ids=fields["group_ids"],
        token_ids=fields["token_ids"],
        mask=mask,
        terminated=mask[:, 0],
        log_probs=fields["rollout_log_probs"],
        completions=("",) * len(rows),
    )
    return Experience(rollouts, mask, fields["advantages"], fields["old_log_probs"]), fields


def cut(experience, count=2, budget=34, epochs=2, unit="row"):
    settings = {"count": count, "micro_batch_tokens": budget, "epochs": epochs, "unit": unit}
    return minibatches(experience, prompts=P, seed=3, **settings)


def average(gradient):
    """What DDP does, then what the strategies undo."""
    if distributed.world_size() > 1:
        dist.all_reduce(gradient)
        gradient /= distributed.world_size()
    return gradient * distributed.world_size()


def gradient_of(algorithm, fields, mask, rows, denominators, stats, **settings):
    theta = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    drift = fields["features"][rows] @ theta
    batch = PolicyBatch(
        log_probs=fields["old_log_probs"][rows] + drift,
        entropy=drift.square(),
        mask=mask,
        **{
            name: fields[name][rows]
            for name in (
                "old_log_probs",
                "rollout_log_probs",
                "ref_log_probs",
                "advantages",
                "token_ids",
                "group_ids",
            )
        },
    )
    loss, found = policy_loss(
        algorithm,
        batch,
        denominators,
        kl=KLPenalty(0.05),
        entropy_coefficient=0.01,
        length=T,
        **settings,
    )
    loss.backward()
    stats.merge([found])
    return loss.item(), theta.grad


def steps_of(name, aggregation, rank, world):
    """Loss, gradient and metrics of each optimizer step, as a module would take them."""
    algorithm = discover()[name]()
    experience, fields = data(rank, world)
    found = []
    for step in cut(experience, unit=algorithm.unit):
        total, gradient, stats = 0.0, torch.zeros(3), Stats()
        for micro in step.micro_batches:
            mask = experience.mask[micro.rows]
            mask = torch.zeros_like(mask) if micro.padding else mask
            loss, grad = gradient_of(
                algorithm,
                fields,
                mask,
                micro.rows,
                step.denominators,
                stats,
                aggregation=aggregation,
            )
            total += loss
            gradient = gradient + grad
        loss = distributed.sum_over_ranks(torch.tensor(total, dtype=torch.float64)).item()
        found.append((loss, average(gradient), over_ranks(stats).means()))
    return found


def rows_per_step(rank, world, count, budget):
    experience, _ = data(rank, world)
    found = []
    for step in cut(experience, count, budget):
        ids, answers = experience.rollouts.group_ids, torch.tensor(share(rank, world)) % G
        mine = (ids * G + answers)[step.rows].tolist()
        micro = [(len(m.rows), m.padding) for m in step.micro_batches]
        fed = [r for m in step.micro_batches if not m.padding for r in m.rows.tolist()]
        counts = step.denominators
        found.append(
            {
                "rows": mine,
                "micro": micro,
                "fed": sorted(fed) == sorted(step.rows.tolist()),
                "counts": (counts.tokens, counts.sequences, counts.groups),
                "group_tokens": counts.group_tokens.tolist(),
            }
        )
    return found


def two_rank_losses(rank, world):
    """LOSS-02: one token of loss 1 on rank 0, three of loss 3 on rank 1."""
    losses = torch.tensor([[1.0, 0, 0], [3.0, 3, 3]])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    mine = slice(None) if world == 1 else slice(rank, rank + 1)
    theta = torch.ones((), requires_grad=True)
    log_probs = (theta - theta.detach()).expand(2, 3)[mine]
    batch = PolicyBatch(log_probs, log_probs.detach(), -losses[mine], mask[mine])
    loss, _ = policy_loss(PPO(), batch, Denominators.count(batch.mask))
    loss.backward()
    value = torch.ones((), requires_grad=True)
    critic, _ = value_loss(
        (value * losses)[mine],
        losses[mine],
        torch.zeros(2, 3)[mine],
        batch.mask,
        Denominators.count(batch.mask),
        clip=torch.inf,
    )
    local = losses[mine][batch.mask].mean()
    return {
        "loss": distributed.sum_over_ranks(loss.detach()).item(),
        "gradient": average(theta.grad).item(),
        "value": distributed.sum_over_ranks(critic.detach()).item(),
        "mean of means": (distributed.sum_over_ranks(local) / world).item(),
    }


def advantages_of(rank, world):
    """ADV-05, and the estimators on 8 rows: groups apart, groups split, whitening."""
    scores = torch.tensor([1.0, 1.0, 0.0, 0.0])
    mine = slice(None) if world == 1 else slice(2 * rank, 2 * rank + 2)
    ones = torch.ones(4, 1, dtype=torch.bool)[mine]
    split = Outcome(scores[mine], ones[:, 0], torch.zeros(4).long()[mine], ones)
    experience, fields = data(rank, world)
    whole = Outcome(
        rewards=fields["scores"],
        valid=torch.tensor([row != 3 for row in share(rank, world)]),
        group_ids=fields["group_ids"],
        mask=experience.mask,
        values=fields["old_log_probs"],
    )
    found = {cls.name: cls()(whole).advantages for cls in (GroupNormalized, LeaveOneOut, GAE)}
    found["returns"] = GAE()(whole).returns
    found["whiten"] = whiten(fields["features"][..., 0], experience.mask)
    return {
        "split": GroupNormalized()(split).advantages[:, 0].tolist(),
        "split centered": GroupCentered()(split).advantages[:, 0].tolist(),
        "rows": share(rank, world),
        **found,
    }


def uneven(rank, world):
    """DIST-03: rank 0 needs 3 micro-batches and has 3 rows, rank 1 has 2 rows in 1."""
    lengths = [[6, 6, 6], [2, 2]][rank]
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    rollouts = Rollouts(
        prompts=Prompts(tuple(Prompt((1,), "") for _ in lengths), tuple(range(len(lengths)))),
        params=SamplingParams(),
        group_ids=torch.arange(len(lengths)),
        token_ids=torch.ones(mask.shape, dtype=torch.long),
        mask=mask,
        terminated=mask[:, 0],
        log_probs=torch.zeros(mask.shape),
        completions=("",) * len(lengths),
    )
    made = Experience(rollouts, mask, torch.ones(mask.shape), torch.zeros(mask.shape))
    rows = torch.arange(len(lengths))
    return {
        "many": [(m.rows.tolist(), m.padding) for m in micro_batches(made, rows, 7)],
        "none": [(len(m.rows), m.padding) for m in micro_batches(made, rows[: 3 * (1 - rank)], 14)],
    }


class Sharded:
    """A policy whose every forward pass needs all ranks, as sharded weights do; counts them."""

    device, max_length, lockstep = torch.device("cpu"), None, True
    eos_ids, pad_id, forwards = frozenset({1}), 0, 0

    def generating(self):
        return nullcontext()

    @contextmanager
    def noting_experts(self):
        yield lambda: None

    def new_cache(self):
        return self

    def reorder_cache(self, rows):
        pass

    def step(self, input_ids, attention_mask, position_ids, cache):
        self.forwards += 1
        distributed.sum_over_ranks(torch.ones(3))
        following = (input_ids[:, -1] - 1).clamp_min(1)
        return torch.full((len(input_ids), 50), -1e4).scatter(-1, following[:, None], 0.0)

    def decode(self, ids):
        return ""


def lockstep(rank, world):
    """DIST-01: the only answer of rank 0 has 2 tokens; rank 1 reads twice, and needs 5 and 3."""
    starts = [[3], [6, 4]][rank] if world > 1 else [3, 6, 4]
    rows = tuple(Prompt((token,), "") for token in starts)
    policy = Sharded()
    rollouts = NativeSampler(max_concurrent=1).sample(
        policy, Prompts(rows, tuple(range(len(rows)))), 1, SamplingParams(20), 0
    )
    return {"forwards": policy.forwards, "lengths": rollouts.lengths().tolist()}


def everything(rank, world):
    stats = Stats()
    stats.add("mean", [4.0, 6.0][rank] if world > 1 else 10.0, [4, 2][rank] if world > 1 else 6)
    stats.maximum("max", [-1.0, -3.0][rank] if world > 1 else -1.0)
    return {
        "steps": {
            (name, aggregation): steps_of(name, aggregation, rank, world)
            for name in discover()
            for aggregation in AGGREGATIONS
        },
        "rows": {
            (count, budget): rows_per_step(rank, world, count, budget)
            for count in (1, 2, 4, 8)
            for budget in (10, 34, 10**6)
        },
        "losses": two_rank_losses(rank, world),
        "advantages": advantages_of(rank, world),
        "stats": over_ranks(stats).means(),
        "broadcast": distributed.gather_objects(("from", rank)),
        "lockstep": lockstep(rank, world),
        "uneven": uneven(rank, world) if world > 1 else None,
    }


@pytest.fixture(scope="module")
def one():
    return everything(0, 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return of_ranks(everything, WORLD, tmp_path_factory.mktemp("gloo"))


def test_loss_02_global_counts_across_ranks(one, two):
    """LOSS-02: (1 + 3 * 3) / 4 = 2.5 and not 2; value loss (1 + 3 * 9) / 8 = 3.5."""
    for rank in two:
        assert rank["losses"]["loss"] == pytest.approx(2.5)
        assert rank["losses"]["gradient"] == pytest.approx(one["losses"]["gradient"])
        assert rank["losses"]["value"] == pytest.approx(3.5)
        assert rank["losses"]["mean of means"] == pytest.approx(2.0)
    assert one["losses"]["gradient"] == pytest.approx(2.5)
    assert one["losses"]["value"] == pytest.approx(3.5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", sorted(discover()))
def test_dist_02_two_processes_take_the_steps_of_one(one, two, name, aggregation):
    """DIST-02: 8 rows of uneven length, 2 epochs of 2 steps: gradients of all ranks as of one."""
    expected = one["steps"][name, aggregation]
    assert len(expected) == 4
    for rank in two:
        found = rank["steps"][name, aggregation]
        assert len(found) == len(expected)
        for (loss, gradient, means), (loss_1, gradient_1, means_1) in zip(
            found, expected, strict=True
        ):
            assert loss == pytest.approx(loss_1, abs=1e-6)
            torch.testing.assert_close(gradient, gradient_1, rtol=1e-6, atol=1e-6)
            assert means == pytest.approx(means_1, rel=1e-6, abs=1e-6)
            assert gradient_1.abs().max() > 1e-3


def test_bat_01_minibatches_do_not_depend_on_the_number_of_ranks(one, two):
    """BAT-01: the same global rows per step; equal counts and equal numbers of passes per rank."""
    padded = 0
    for key, expected in one["rows"].items():
        for step, (whole, *parts) in enumerate(
            zip(expected, *(rank["rows"][key] for rank in two), strict=True)
        ):
            together = sorted(row for part in parts for row in part["rows"])
            assert together == sorted(whole["rows"]), (key, step)
            assert len(whole["rows"]) == P * G // key[0]
            assert len({len(part["micro"]) for part in parts}) == 1
            for part in parts:
                assert part["counts"] == whole["counts"]
                assert part["group_tokens"] == whole["group_tokens"]
                assert part["fed"]
                padded += sum(padding for _, padding in part["micro"])
            for position in {row // G for row in together}:
                owner = parts[position % WORLD]
                assert {r for r in together if r // G == position} <= set(owner["rows"])
    assert padded > 0


def test_dist_03_ranks_make_as_many_passes_as_the_busiest(two):
    """DIST-03: real rows are split before a padding pass is added, and a padding pass is marked."""
    busy, idle = two[0]["uneven"], two[1]["uneven"]
    assert busy["many"] == [([0], False), ([1], False), ([2], False)]
    assert idle["many"] == [([0], False), ([1], False), ([0], True)]
    assert busy["none"] == [(2, False), (1, False)]
    assert idle["none"] == [(1, True), (1, True)]


def test_dist_01_ranks_that_are_done_keep_step(one, two):
    """DIST-01: forward passes [8, 8], lengths [2] and [5, 3]; alone, as many as tokens."""
    assert [rank["lockstep"]["forwards"] for rank in two] == [8, 8]
    assert [rank["lockstep"]["lengths"] for rank in two] == [[2], [5, 3]]
    assert one["lockstep"] == {"forwards": 10, "lengths": [2, 5, 3]}


def test_adv_05_a_group_split_over_ranks(one, two):
    """ADV-05: [1, 1] | [0, 0]: +-.86588; statistics of each rank alone would give 0."""
    size = 0.5 / (0.5773503 + 1e-4)
    assert two[0]["advantages"]["split"] == pytest.approx([size] * 2, abs=1e-6)
    assert two[1]["advantages"]["split"] == pytest.approx([-size] * 2, abs=1e-6)
    assert two[0]["advantages"]["split centered"] == [0.5, 0.5]
    assert two[1]["advantages"]["split centered"] == [-0.5, -0.5]
    assert one["advantages"]["split"] == pytest.approx([size, size, -size, -size], abs=1e-6)


@pytest.mark.parametrize("name", ["group", "leave-one-out", "gae", "returns", "whiten"])
def test_adv_05_estimators_over_ranks(one, two, name):
    """ADV-05: 8 rows, one abstaining, whitened over the tokens of both ranks."""
    whole = one["advantages"][name]
    assert whole.abs().max() > 0.1
    for rank in two:
        rows = rank["advantages"]["rows"]
        torch.testing.assert_close(rank["advantages"][name], whole[rows], rtol=1e-6, atol=1e-6)


def test_log_02_statistics_of_all_ranks(one, two):
    """LOG-02: (4 + 6) / (4 + 2) on both ranks."""
    for found in (one, *two):
        assert found["stats"] == {"mean": pytest.approx(10 / 6), "max": -1.0}
    assert [rank["broadcast"] for rank in two] == [[("from", 0), ("from", 1)]] * 2
