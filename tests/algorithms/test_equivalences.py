"""Objectives against each other: where two papers meet, their losses and gradients are the same."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from rlzoo import algorithms as zoo
from rlzoo.advantages import GroupCentered, Groups, LeaveOneOut
from rlzoo.algorithms.gtpo import shared_runs
from rlzoo.errors import UserError
from rlzoo.objective.gradient_weight import sources
from rlzoo.objective.loss import policy_loss
from rlzoo.ops import Denominators, product_ratio, sequence_ratio
from rlzoo.types import PolicyBatch

MISC = json.loads((Path(__file__).parent.parent / "golden" / "objectives.json").read_text())["misc"]
RAGGED = (5, 3, 1, 4, 2, 6)
EVEN = (4,) * 6
ONE_TOKEN = (1,) * 6


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def draw(lengths=RAGGED, drift=0.5, per_token=False):
    """A batch of six answers to three prompts, good and bad, that left every band somewhere."""
    rng = torch.Generator().manual_seed(2)
    shape = (len(lengths), max(lengths))
    old, moved, noise = torch.randn(3, *shape, generator=rng, dtype=torch.float64).unbind()
    old = -old.abs() - 0.1
    row = exact([1.0, -0.8, -1.5, 0.5, 0.7, -0.3])[:, None]
    return {
        "log_probs": old + drift * moved,
        "old_log_probs": old,
        "rollout_log_probs": old + 0.1 * noise,
        "advantages": row + 0.5 * noise if per_token else row.expand(shape),
        "mask": torch.arange(max(lengths)) < torch.tensor(lengths)[:, None],
        "group_ids": torch.tensor([0, 0, 1, 1, 2, 2]),
        "entropy": torch.full(shape, 0.2, dtype=torch.float64),
        "token_ids": torch.arange(shape[0] * shape[1]).view(shape),
    }


def take(algorithm, fields, **settings):
    """Return the loss and its gradient."""
    leaf = fields["log_probs"].clone().requires_grad_()
    batch = PolicyBatch(**{**fields, "log_probs": leaf})
    counts = Denominators.count(batch.mask, batch.group_ids)
    loss, _ = policy_loss(algorithm, batch, counts, length=8, **settings)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def same(one, other):
    for ours, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def differ(one, other):
    assert (one[1] - other[1]).abs().max() > 1e-3


def clipped_of(algorithm, fields):
    batch = PolicyBatch(**fields)
    return algorithm.clip(algorithm.ratio(batch), batch).clipped & batch.mask


class Scaled(zoo.Algorithm):
    """Another objective times a constant."""

    def __init__(self, inner, by):
        self.inner, self.by, self.ratio = inner, by, inner.ratio
        self.aggregation = inner.aggregation

    def clip(self, ratio, batch):
        objective, clipped = self.inner.clip(ratio, batch)
        return zoo.Surrogate(self.by * objective, clipped)


class Summed(Scaled):
    """Another objective, put together as a mean over answers of sums."""

    def __init__(self, inner):
        super().__init__(inner, 1.0)
        self.aggregation = "sequence-sum"


class Flipped(zoo.PPO):
    """PPO's value and gradient with r^-2 r in place of r where the advantage is positive."""

    def clip(self, ratio, batch):
        r = ratio.detach().clamp(max=1 + self.clip_high)
        weight = torch.where(batch.advantages > 0, r.pow(-2), 1.0)
        objective, clipped = super().clip(ratio, batch)
        return zoo.Surrogate(weight * objective, clipped)


# Left and right are equal on the batch, and not on the one beside it.
PAIRS = {
    "GSPO-token with one advantage per answer is GSPO": (
        lambda: (zoo.GSPOToken(0.1, 0.1), zoo.GSPO(0.1, 0.1)),
        draw(),
        draw(per_token=True),
    ),
    "GSPO of one token is GRPO": (
        lambda: (zoo.GSPO(0.2, 0.2), zoo.GRPO(0.2, 0.2)),
        draw(ONE_TOKEN),
        draw(),
    ),
    "GMPO of one token is GRPO with its band": (
        lambda: (zoo.GMPO(0.4, 0.4), zoo.GRPO(1 - math.exp(-0.4), math.exp(0.4) - 1)),
        draw(ONE_TOKEN),
        draw(),
    ),
    "GMPO that clips nothing is GSPO that clips nothing": (
        lambda: (zoo.GMPO(9.0, 9.0), zoo.GSPO(1.0, 99.0)),
        draw(),
        None,
    ),
    "DAPO with GRPO's band is GRPO where lengths are equal": (
        lambda: (zoo.DAPO(0.2, 0.2), zoo.GRPO(0.2, 0.2)),
        draw(EVEN),
        draw(),
    ),
    "Dr. GRPO is GRPO times |y|/L where lengths are equal": (
        lambda: (zoo.DrGRPO(), Scaled(zoo.GRPO(), 4 / 8)),
        draw(EVEN),
        draw(),
    ),
    "RLOO's ratio of one token is PPO's": (
        lambda: (zoo.RLOOSequenceClip(), zoo.PPO()),
        draw(ONE_TOKEN),
        draw(),
    ),
    "LUSPO is GSPO times |y| where lengths are equal": (
        lambda: (zoo.LUSPO(0.1, 0.1), Scaled(zoo.GSPO(0.1, 0.1), 4.0)),
        draw(EVEN),
        draw(),
    ),
    "GEPO with one answer per prompt is GSPO": (
        lambda: (zoo.GEPO(0.2, 0.2), zoo.GSPO(0.2, 0.2)),
        {**draw(), "group_ids": torch.arange(6)},
        draw(),
    ),
    "MiniRL sampled by the old policy is DPPO with no bound but the band": (
        lambda: (zoo.MiniRL(1.0, 99.0, 3.0), Summed(zoo.DPPOTV(1.0, 1.0, 3.0))),
        {**draw(), "rollout_log_probs": draw()["old_log_probs"]},
        draw(),
    ),
    "TOPR of one token is a cap of 1 on what is bad": (
        lambda: (zoo.TOPR(), Summed(zoo.CISPO(1.0))),
        {**draw(ONE_TOKEN), "advantages": -torch.ones(6, 1).double()},
        draw(ONE_TOKEN),
    ),
}
# Equal on every batch; the third has the setting that made them equal changed.
SETTINGS = {
    "a dual clip at infinity is PPO": (
        lambda: zoo.PPO(dual_clip_cap=math.inf),
        zoo.PPO,
        lambda: zoo.PPO(dual_clip_cap=1.3),
    ),
    "DPPO without a bound is CISPO": (
        lambda: zoo.DPPOTV(1.0, 1.0, 2.0),
        lambda: zoo.CISPO(2.0),
        lambda: zoo.DPPOTV(0.1, 0.1, 2.0),
    ),
    "KL is another bound than total variation": (
        lambda: zoo.DPPOKL(99.0, 99.0, 2.0),
        lambda: zoo.DPPOTV(1.0, 1.0, 2.0),
        lambda: zoo.DPPOKL(ratio_cap=2.0),
    ),
    "FIPO with a weight of 1 is DAPO": (
        lambda: zoo.FIPO(weight_floor=1.0, weight_cap=1.0),
        zoo.DAPO,
        zoo.FIPO,
    ),
    "DRO without a pull is REINFORCE": (
        lambda: Summed(zoo.DRO(0.0)),
        zoo.REINFORCE,
        lambda: Summed(zoo.DRO(0.1)),
    ),
    "RLOO's objective is REINFORCE's": (
        zoo.RLOO,
        zoo.REINFORCE,
        zoo.TOPR,
    ),
    "VESPO with a weight of 1 is REINFORCE": (
        lambda: Summed(zoo.VESPO(0.0, 0.0, 0.0, 0.0)),
        zoo.REINFORCE,
        lambda: Summed(zoo.VESPO()),
    ),
    "Clip-Cov with no covariance in its bounds is PPO": (
        lambda: zoo.ClipCov(covariance_low=98.0, covariance_high=99.0),
        zoo.PPO,
        lambda: zoo.ClipCov(covariance_low=0.1, share=1.0),
    ),
    "KL-Cov without a penalty is PPO without a clip": (
        lambda: zoo.KLCov(penalty=0.0, share=0.5),
        lambda: zoo.PPO(1.0, 1e9),
        lambda: zoo.KLCov(penalty=1.0, share=0.5),
    ),
    "ASPO takes its weight from 1/r where PPO takes it from r": (
        lambda: zoo.ASPO(weight_cap=math.inf),
        Flipped,
        zoo.PPO,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_objectives_meet(name):
    build, meeting, apart = PAIRS[name]
    left, right = build()
    assert take(left, meeting)[1].abs().max() > 1e-2
    same(take(left, meeting), take(right, meeting))
    if apart is not None:
        differ(take(left, apart), take(right, apart))


@pytest.mark.parametrize("per_token", [False, True], ids=["per answer", "per token"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_turns_one_into_another(name, per_token):
    left, right, other = (build() for build in SETTINGS[name])
    fields = draw(per_token=per_token)
    same(take(left, fields), take(right, fields))
    differ(take(other, fields), take(right, fields))


def weight_of(algorithm, fields, **settings):
    """Return g, what a token's gradient is next to REINFORCE's under the same aggregation."""
    plain = zoo.REINFORCE()
    plain.aggregation = algorithm.aggregation
    mask = fields["mask"]
    ratio = take(algorithm, fields, **settings)[1] / take(plain, fields, **settings)[1]
    return torch.where(mask, ratio, 1.0), mask


# By name, so that a class cannot leave the list unseen: REAL, GEPO and GTPO are not on it, and
# Clip-Cov only where its bounds hold no token.
ONE_AT_ONE = [
    "ASPO",
    "CISPO",
    "DAPO",
    "DPPOKL",
    "DPPOTV",
    "DRO",
    "DrGRPO",
    "FIPO",
    "GMPO",
    "GRPO",
    "GSPO",
    "GSPOToken",
    "KLCov",
    "LUSPO",
    "MiniRL",
    "PPO",
    "REINFORCE",
    "RLOO",
    "RLOOSequenceClip",
    "SAPO",
    "TOPR",
    "VESPO",
]


def on_policy():
    fields = draw()
    return {**fields, **dict.fromkeys(("log_probs", "rollout_log_probs"), fields["old_log_probs"])}


@pytest.mark.parametrize("name", ONE_AT_ONE)
def test_on_policy_every_weight_is_one(name):
    weight, _ = weight_of(zoo.discover()[name](), on_policy())
    torch.testing.assert_close(weight, torch.ones_like(weight), rtol=1e-12, atol=1e-12)


def test_the_others_are_the_ones_that_papers_make_different():
    published = {name for name, cls in zoo.discover().items() if sources(cls)}
    assert published - set(ONE_AT_ONE) == {"GEPO", "REAL", "GTPO", "ClipCov"}
    for algorithm in (zoo.GEPO(), zoo.REAL(), zoo.GTPO(), zoo.ClipCov(share=1, covariance_low=0)):
        weight, _ = weight_of(algorithm, on_policy())
        assert (weight - 1).abs().max() > 1e-2


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_cispo_without_a_cap_weighs_by_the_detached_ratio(advantage):
    fields = draw()
    fields["advantages"] = torch.full_like(fields["advantages"], advantage)
    weight, mask = weight_of(zoo.CISPO(1e9), fields)
    ratio = (fields["log_probs"] - fields["old_log_probs"]).exp()
    torch.testing.assert_close(weight[mask], ratio[mask], rtol=1e-12, atol=0)


def test_sapo_with_an_open_gate_weighs_by_the_ratio():
    """As tau goes to 0, f(r) r goes to r with an error of order tau^2."""
    fields = draw()
    ratio = (fields["log_probs"] - fields["old_log_probs"]).exp()
    errors = []
    for tau in (0.1, 0.01):
        weight, mask = weight_of(zoo.SAPO(tau, tau), fields)
        errors.append((weight - ratio)[mask].abs().max().item())
    assert errors[1] < 1e-3
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.05)


def test_dr_grpo_and_rloo_advantages_differ_by_a_constant():
    rewards = exact([0.1, 0.9, 0.4, 1.0])
    groups = Groups(rewards, torch.zeros(4).long(), torch.ones(4).bool())
    centered, others = GroupCentered().of_groups(groups), LeaveOneOut().of_groups(groups)
    torch.testing.assert_close(centered * 4 / 3, others)
    assert zoo.DrGRPO.advantage == GroupCentered.name
    assert zoo.RLOO.advantage == LeaveOneOut.name


def one_token(ratio, advantage):
    """A one-token answer at each of the given ratios."""
    column = exact(ratio)[:, None]
    old = torch.full_like(column, -2.0)
    return {
        "log_probs": old + column.log(),
        "old_log_probs": old,
        "advantages": torch.full_like(column, advantage),
        "mask": torch.ones_like(column).bool(),
        "group_ids": torch.zeros(len(column)).long(),
    }


@pytest.mark.parametrize(("advantage", "tau"), [(1.0, "1.0"), (-1.0, "1.05")])
def test_sapo_gate_gradient_as_worked(advantage, tau):
    """The gate's slope 4 p (1 - p), which the gradient of the ratio multiplies by r."""
    table = MISC["sapo_gate_grad"]
    weight, _ = weight_of(zoo.SAPO(), one_token(table["r"], advantage))
    expected = exact(table["weight"][tau]) * exact(table["r"])
    torch.testing.assert_close(weight[:, 0], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("advantage", "key"), [(1.0, "pos_k2_lam3"), (-1.0, "neg_k3_lam2")])
def test_vespo_weights_as_worked(advantage, key):
    table = MISC["vespo_phi"]
    weight, _ = weight_of(zoo.VESPO(), one_token(table["W"], advantage))
    expected = exact(table[key])
    torch.testing.assert_close(weight[:, 0], expected, rtol=1e-12, atol=0)


def padded(flat, table):
    """Rows of a packed sequence, junk where they are shorter than the longest."""
    bounds = table["cu_seqlens"]
    rows = [exact(flat[a:b]) for a, b in itertools.pairwise(bounds)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=9.0)


def test_gspo_padded_is_gspo_packed():
    table = MISC["packed_gspo_S"]
    fields = {
        "log_probs": padded(table["flat_logp_new"], table),
        "old_log_probs": padded(table["flat_logp_old"], table),
        "mask": padded([1.0] * 5, table) == 1,
        "group_ids": torch.tensor([0, 0]),
    }
    advantages = exact(table["advantages"])[:, None]
    fields["advantages"] = advantages.expand_as(fields["mask"])
    loss, gradient = take(zoo.GSPO(), fields)
    expected = exact(table["flat_grad"])
    torch.testing.assert_close(gradient[fields["mask"]], expected, rtol=1e-12, atol=1e-14)
    assert loss.item() == pytest.approx(table["loss"], rel=1e-12)
    ratio = sequence_ratio(fields["log_probs"], fields["old_log_probs"], fields["mask"])
    assert ratio.flatten().tolist() == pytest.approx(table["s"], rel=1e-12)


@pytest.mark.parametrize(("sign", "step"), [("plus2", 1.02), ("minus2", 0.98)])
def test_products_of_ratios_grow_with_length_and_their_geometric_means_do_not(sign, step):
    table = MISC["article_table_product_ratio"]
    lengths = torch.tensor(table["lengths"])
    mask = torch.arange(64) < lengths[:, None]
    drift = torch.full(mask.shape, math.log(step), dtype=torch.float64)
    products = product_ratio(drift, torch.zeros_like(drift), mask)
    assert products.flatten().tolist() == pytest.approx(table[sign], rel=1e-12)
    means = sequence_ratio(drift, torch.zeros_like(drift), mask)
    assert means.flatten().tolist() == pytest.approx([table[f"geometric_{sign}"]] * 6, rel=1e-12)
    # An answer leaves PPO's band from 16 tokens on, and GSPO's own at any length.
    advantages = torch.full_like(drift, 1.0 if step > 1 else -1.0)
    fields = {"old_log_probs": -drift.abs(), "advantages": advantages, "mask": mask}
    fields["log_probs"] = fields["old_log_probs"] + drift
    whole = clipped_of(zoo.RLOOSequenceClip(), fields).any(-1)
    assert whole.tolist() == [length >= 16 for length in table["lengths"]]
    assert clipped_of(zoo.GSPO(), fields).any(-1).all() == table["clipped_by_gspo_paper_range"]


def test_a_certain_token_is_not_infinitely_far():
    """p = 1 and q = .999: the KL is taken to 1 - 1e-12, 0.02, and not to 1, infinity."""
    fields = one_token([1 / 0.999, 1 / 0.9], 1.0)
    fields["old_log_probs"] = -fields["log_probs"].sub(-2.0)
    fields["log_probs"] = torch.zeros_like(fields["log_probs"])
    assert clipped_of(zoo.DPPOKL(), fields).flatten().tolist() == [False, True]


def test_tokens_drawn_by_clip_cov():
    """As many as asked for, others with another seed, the same ones in another order."""
    fields = draw(EVEN)
    eligible = clipped_of(zoo.ClipCov(share=1.0, covariance_low=0.01), fields)
    eligible &= ~clipped_of(zoo.PPO(), fields)

    def drawn(seed, fields=fields, share=4 / 24):
        clip = zoo.ClipCov(share=share, covariance_low=0.01, seed=seed)
        return clipped_of(clip, fields) & ~clipped_of(zoo.PPO(), fields)

    sets = {tuple(drawn(seed).flatten().tolist()) for seed in range(5)}
    assert len(sets) > 1
    for chosen in sets:
        assert sum(chosen) == 4 < int(eligible.sum())
        assert not (torch.tensor(chosen).view_as(eligible) & ~eligible).any()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    reordered = {name: value[order] for name, value in fields.items()}
    assert torch.equal(drawn(0, reordered), drawn(0)[order])
    assert drawn(0, share=1e-9).sum() == 1


def test_kl_cov_holds_back_the_largest_positive_covariances():
    fields = draw(EVEN)
    advantages, log_probs = fields["advantages"], fields["log_probs"]
    product = (advantages - advantages.mean()) * (log_probs - log_probs.mean())
    held = clipped_of(zoo.KLCov(share=3 / 24), fields)
    assert held.sum() == 3
    assert product[held].min() > product[~held].max()
    everything = clipped_of(zoo.KLCov(share=1.0), fields)
    assert torch.equal(everything, product > 0)


def test_gtpo_runs_belong_to_a_group_and_reach_from_the_ends():
    """Two prompts with the same tokens: the second has no bad answer, so nothing is shared."""
    ids = torch.tensor([[7, 8, 1, 9], [7, 8, 2, 9], [7, 5, 8, 9], [7, 8, 1, 9], [7, 8, 2, 9]])
    mask = torch.ones_like(ids).bool()
    mask[2, 3] = False
    sign = torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0]])
    runs = shared_runs(ids, mask, torch.tensor([0, 0, 0, 1, 1]), sign)
    none = [0, 0, 0, 0]
    assert runs.tolist() == [[1, 1, 0, 1], [1, 1, 0, 1], [1, 0, 0, 0], none, none]
    whole = shared_runs(ids[[0, 0]], mask[:2], torch.tensor([4, 4]), sign[:2])
    assert whole.tolist() == [[2, 2, 2, 2], [2, 2, 2, 2]]
    assert not shared_runs(ids, mask, torch.tensor([0, 0, 0, 1, 1]), 0 * sign).any()


def test_gtpo_leaves_out_answers_of_high_entropy():
    fields = draw()
    fields["entropy"] = fields["entropy"].clone()
    fields["entropy"][1] = 0.7
    left_out = clipped_of(zoo.GTPO(), fields)
    assert torch.equal(left_out.any(-1), torch.tensor([False, True] + [False] * 4))
    _, gradient = take(zoo.GTPO(), fields)
    assert not gradient[1].any()
    assert gradient[0].any()
    assert take(zoo.GTPO(entropy_cap=1.0), fields)[1][1].any()


def test_gtpo_reads_entropy_as_a_number():
    fields = draw()
    fields["entropy"] = fields["entropy"].clone().requires_grad_()
    leaf = fields["log_probs"].clone().requires_grad_()
    batch = PolicyBatch(**{**fields, "log_probs": leaf})
    policy_loss(zoo.GTPO(), batch, Denominators.count(batch.mask)).loss.backward()
    assert leaf.grad.any()
    assert fields["entropy"].grad is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: zoo.PPO(dual_clip_cap=1.0), "PPO: dual_clip_cap must be > 1"),
        (lambda: zoo.SAPO(tau_neg=0.0), "SAPO: tau_neg must be > 0"),
        (lambda: zoo.REAL(tau=-1.0), "REAL: tau must be > 0"),
        (lambda: zoo.DRO(beta=math.nan), "DRO: beta must be >= 0"),
        (lambda: zoo.LUSPO(clip_low=1.5), "LUSPO: clip_low 1.5 is above 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(build, message):
    with pytest.raises(UserError, match=message):
        build()
