"""Corrections: worked values, what they may not touch, and settings that are refused."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from rlzoo.algorithms import CISPO, GRPO, GSPO, PPO
from rlzoo.errors import UserError
from rlzoo.objective.corrections import (
    Correction,
    MaskedIS,
    OffPolicySequenceMask,
    TopEntropyMask,
    TruncatedIS,
    check_corrections,
    combined_weights,
    sampler_ratio,
)
from rlzoo.objective.loss import KLPenalty, policy_loss
from rlzoo.ops import Denominators
from rlzoo.training.experience import finish
from rlzoo.types import PolicyBatch
from rlzoo.types.stats import Stats

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "objectives.json").read_text())
NAN = float("nan")
KEYS = ("tis_token", "tis_sequence", "tis_geometric", "mis_token", "mis_sequence", "mis_geometric")
CASES = [
    pytest.param(key, case, id=f"{key}-{i}")
    for key in KEYS
    for i, case in enumerate(GOLDEN["algorithms"][key])
]
EVERY = [
    *(TruncatedIS(level) for level in ("token", "sequence", "geometric")),
    *(MaskedIS(level) for level in ("token", "sequence", "geometric")),
    OffPolicySequenceMask(0.0),
    TopEntropyMask(0.5),
]
every = pytest.mark.parametrize(
    "correction", EVERY, ids=lambda c: f"{type(c).__name__}-{getattr(c, 'level', '')}"
)


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def worked(inputs, rollout="logp_rollout"):
    """The batch of a worked case, and the leaf that its gradient goes to."""
    leaf = float64(inputs["logp_new"]).requires_grad_()
    batch = PolicyBatch(
        log_probs=leaf,
        old_log_probs=float64(inputs["logp_old"]),
        advantages=float64(inputs["advantages"])[:, None].expand_as(leaf),
        mask=float64(inputs["mask"]).bool(),
        rollout_log_probs=float64(inputs[rollout]),
    )
    return leaf, batch


def loss_of(algorithm, leaf, batch, corrections, **settings):
    counts = settings.pop("counts", None) or Denominators.count(batch.mask)
    loss, stats = policy_loss(algorithm, batch, counts, corrections=corrections, **settings)
    (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    return loss.detach(), gradient, stats


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def build(key, inputs):
    kind, level = key.split("_")
    if kind == "tis":
        return TruncatedIS(level, inputs["c_max"])
    return MaskedIS(level, inputs["c_min"], inputs["c_max"])


@pytest.mark.parametrize(("key", "case"), CASES)
def test_importance_weights_are_the_worked_ones(key, case):
    inputs, expected = case["inputs"], case["outputs"]
    leaf, batch = worked(inputs)
    correction = build(key, inputs)
    close(combined_weights([correction], batch), float64(inputs["is_weight"]))
    algorithm = PPO(inputs["eps_low"], inputs["eps_high"])
    loss, gradient, stats = loss_of(algorithm, leaf, batch, [correction])
    close(loss, float64(expected["loss"]))
    close(gradient, float64(expected["grad_logp_new"]))
    assert stats.means()["policy/clip_fraction"] == pytest.approx(expected["clip_fraction"])
    plain, _, _ = loss_of(algorithm, leaf, batch, [])
    turned = PolicyBatch(  # the ratio upside down is another number
        **{
            **vars(batch),
            "old_log_probs": batch.rollout_log_probs,
            "rollout_log_probs": batch.old_log_probs,
        }
    )
    assert (loss - plain).abs() > 1e-3
    assert (
        combined_weights([correction], turned) - float64(inputs["is_weight"])
    ).abs().max() > 0.01


def test_default_bounds_are_the_worked_ones():
    for key in KEYS:
        inputs = GOLDEN["algorithms"][key][0]["inputs"]
        default, given = type(build(key, inputs))(key.split("_")[1]), build(key, inputs)
        unlike = {"_made_with": None}  # what was given differs, what came of it must not
        assert vars(default) | unlike == vars(given) | unlike


@pytest.mark.parametrize("i", [0, 1])
def test_off_policy_sequence_mask_is_the_worked_one(i):
    case = GOLDEN["algorithms"]["grpo_opsm"][i]
    inputs, expected = case["inputs"], case["outputs"]
    leaf, batch = worked(inputs, rollout="logp_old")
    correction = OffPolicySequenceMask(inputs["delta"])
    kept = float64(inputs["opsm_mask"]) * batch.mask
    close(combined_weights([correction], batch), kept)
    loss, gradient, _ = loss_of(GRPO(), leaf, batch, [correction])
    close(loss, float64(expected["loss"]))
    close(gradient, float64(expected["grad_logp_new"]))


def test_off_policy_sequence_mask_keeps_answers_that_were_right_and_moves_towards():
    """Mean drop .1 nats: dropped only if A < 0 and the drop, not the rise, is over delta."""
    zeros, mask = torch.zeros(1, 2), torch.ones(1, 2).bool()
    lower, higher = torch.tensor([[-0.2, 0.0]]), torch.tensor([[0.2, 0.0]])
    for log_probs, advantage, delta, expected in (
        (lower, -1.0, 0.09, 0.0),
        (lower, -1.0, 0.11, 1.0),
        (lower, 1.0, 0.09, 1.0),
        (higher, -1.0, 0.09, 1.0),
    ):
        batch = PolicyBatch(log_probs, zeros, zeros + advantage, mask, rollout_log_probs=zeros)
        weights = combined_weights([OffPolicySequenceMask(delta)], batch)
        assert weights.tolist() == [[expected, expected]]


LENGTHS = (5, 1, 3, 0, 4, 2)


def make(dtype=torch.float64, gap=0.5):
    """Ragged rows with every field; the sampler is ``gap`` nats off on average."""
    rng = torch.Generator().manual_seed(7)

    def normal():
        return torch.randn(len(LENGTHS), max(LENGTHS), generator=rng, dtype=torch.float64)

    old = -normal().abs() - 0.1
    fields = {
        "log_probs": old + 0.2 * normal(),
        "old_log_probs": old,
        "rollout_log_probs": old + gap * normal(),
        "ref_log_probs": old + 0.3 * normal(),
        "advantages": normal(),
        "entropy": normal().abs(),
    }
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return {**{k: v.to(dtype) for k, v in fields.items()}, "mask": mask}


def evaluate(fields, corrections, algorithm=None, **settings):
    leaf = fields["log_probs"].clone().requires_grad_()
    batch = PolicyBatch(**{**fields, "log_probs": leaf})
    return loss_of(algorithm or PPO(), leaf, batch, corrections, **settings)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("algorithm", [PPO(), GSPO(0.1, 0.1), CISPO()])
def test_where_the_sampler_is_the_trainer_nothing_changes_by_a_bit(correction, dtype, algorithm):
    fields = make(dtype, gap=0.0)
    if isinstance(correction, OffPolicySequenceMask):
        fields["log_probs"] = fields["old_log_probs"].clone()
    if isinstance(correction, TopEntropyMask):
        fields["entropy"] = torch.ones_like(fields["entropy"])  # all tie, so all are kept
    weights = combined_weights([correction], PolicyBatch(**fields))
    assert torch.equal(weights, fields["mask"].to(dtype))
    settings = {"kl": KLPenalty(0.05), "entropy_coefficient": 0.01}
    plain = evaluate(fields, [], algorithm, **settings)
    ours = evaluate(fields, [correction], algorithm, **settings)
    assert torch.equal(ours[0], plain[0])
    assert torch.equal(ours[1], plain[1])
    means = finish(ours[2].means())
    assert means["correction/weight_mean"] == 1
    assert means["correction/ess"] == 1
    assert means["correction/rejected"] == 0
    assert means["policy/mismatch_kl"] == means["policy/mismatch_kl_k1"] == 0


@every
def test_a_real_gap_is_seen(correction):
    """Otherwise the test above and those below would pass for a correction that does nothing."""
    plain, ours = evaluate(make(), []), evaluate(make(), [correction])
    assert (ours[0] - plain[0]).abs() > 1e-3
    assert (ours[1] - plain[1]).abs().max() > 1e-3


@every
@pytest.mark.parametrize("junk", [NAN, math.inf, -math.inf, 1e9])
@pytest.mark.parametrize("extra", [0, 7])
def test_what_padding_holds_changes_not_a_bit(correction, junk, extra):
    def widened(fill):
        fields = make(torch.float32)
        mask = torch.nn.functional.pad(fields.pop("mask"), (0, extra))
        wide = {k: torch.nn.functional.pad(v, (0, extra)) for k, v in fields.items()}
        return {"mask": mask, **{k: v.masked_fill(~mask, fill) for k, v in wide.items()}}

    clean, dirty = evaluate(widened(0.0), [correction]), evaluate(widened(junk), [correction])
    assert torch.equal(dirty[0], clean[0])
    assert torch.equal(dirty[1], clean[1])
    assert finish(dirty[2].means()) == pytest.approx(finish(clean[2].means()), nan_ok=True)
    narrow = evaluate(make(torch.float32), [correction])
    torch.testing.assert_close(dirty[0], narrow[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(dirty[1][:, :5], narrow[1], rtol=1e-6, atol=1e-7)


@every
def test_every_micro_batch_split_adds_up(correction):
    whole = make()
    counts = Denominators.count(whole["mask"])
    loss, gradient, stats = evaluate(whole, [correction])
    expected, rows = finish(stats.means()), len(LENGTHS)
    assert 0 < expected["correction/ess"] < 1
    for size in range(rows):
        for cuts in itertools.combinations(range(1, rows), size):
            total, parts, several = 0.0, [], Stats()
            for start, stop in zip((0, *cuts), (*cuts, rows), strict=True):
                width = max(1, *LENGTHS[start:stop], 0)
                part = {k: v[start:stop, :width] for k, v in whole.items()}
                share, grad, more = evaluate(part, [correction], counts=counts)
                total = total + share
                parts.append(torch.nn.functional.pad(grad, (0, max(LENGTHS) - width)))
                several.merge([more])
            close(total, loss)
            close(torch.cat(parts), gradient)
            assert finish(several.means()) == pytest.approx(
                expected, rel=1e-12, abs=1e-14, nan_ok=True
            )


@every
def test_the_weights_carry_no_gradient_and_leave_kl_entropy_and_counts_alone(correction):
    """loss = sum w (-c objective) + beta KL - c_e H: the last two are those without a correction."""
    fields = make()
    fields["entropy"] = fields["entropy"].requires_grad_()
    batch = PolicyBatch(**fields)
    assert not combined_weights([correction], batch).requires_grad
    settings = {"kl": KLPenalty(0.7, "k2"), "entropy_coefficient": 0.3}
    for corrections in ([], [correction]):
        with_both = evaluate(fields, corrections, **settings)
        without = evaluate(fields, corrections)
        difference = with_both[0] - without[0], with_both[1] - without[1]
        if not corrections:
            plain = difference
    close(difference[0], plain[0])
    close(difference[1], plain[1])
    assert plain[1].abs().max() > 0.01
    weights = combined_weights([correction], PolicyBatch(**fields))
    surrogate_gradient = evaluate(fields, [])[1]
    close(evaluate(fields, [correction])[1], weights * surrogate_gradient)


def test_the_band_is_on_the_weight_and_not_on_its_inverse():
    """w = e^.6 = 1.82 is inside [.9, 2] and e^-.6 = .55 is outside."""
    zeros, mask = torch.zeros(1, 2), torch.ones(1, 2).bool()
    rollout = torch.tensor([[-0.6, 0.6]])
    batch = PolicyBatch(zeros, zeros, zeros, mask, rollout_log_probs=rollout)
    weights = combined_weights([MaskedIS("token", 0.9, 2.0)], batch)
    assert weights[0].tolist() == pytest.approx([math.exp(0.6), 0.0])


def test_levels_are_token_product_and_mean():
    zeros, mask = torch.zeros(1, 3), torch.tensor([[True, True, False]])
    batch = PolicyBatch(
        zeros, zeros, zeros, mask, rollout_log_probs=torch.tensor([[0.1, 0.3, NAN]])
    )
    assert sampler_ratio(batch, "sequence").item() == pytest.approx(math.exp(-0.4))
    assert sampler_ratio(batch, "geometric").item() == pytest.approx(math.exp(-0.2))
    token = sampler_ratio(batch, "token")[0, :2].tolist()
    assert token == pytest.approx([math.exp(-0.1), math.exp(-0.3)])


def test_metrics_by_hand():
    """Weights 2 (cut), .5, 0 (rejected): mean 2.5 / 3, ess 2.5^2 / (3 * 4.25), a third rejected."""
    old, mask = torch.zeros(1, 3).double(), torch.ones(1, 3).bool()

    class Given(Correction):
        def weights(self, batch):
            return float64([[2.0, 0.5, 0.0]])

    rollout = float64([[-0.3, 0.2, 0.0]])
    batch = PolicyBatch(old.clone().requires_grad_(), old, old, mask, rollout_log_probs=rollout)
    _, stats = policy_loss(PPO(), batch, Denominators.count(mask), corrections=[Given()])
    means = finish(stats.means())
    assert means["correction/weight_mean"] == pytest.approx(2.5 / 3)
    assert means["correction/ess"] == pytest.approx(6.25 / 12.75)
    assert means["correction/rejected"] == pytest.approx(1 / 3)
    assert "correction/weight_square" not in means
    # KL(sampler, trainer): mean of rollout - old, and of e^u - u - 1 with u = old - rollout
    assert means["policy/mismatch_kl_k1"] == pytest.approx(-0.1 / 3)
    k3 = (math.exp(0.3) - 1.3 + math.exp(-0.2) - 0.8) / 3
    assert means["policy/mismatch_kl"] == pytest.approx(k3)


def test_where_all_is_rejected_the_effective_sample_size_is_zero():
    fields = make(gap=0.0)
    fields["rollout_log_probs"] = fields["old_log_probs"] - 5
    loss, gradient, stats = evaluate(fields, [MaskedIS()])
    assert loss == 0
    assert not gradient.any()
    means = finish(stats.means())
    assert means["correction/rejected"] == 1
    assert means["correction/ess"] == 0


@pytest.mark.parametrize("gap", [100.0, -100.0])
@every
def test_finite_far_from_the_sampler(correction, gap):
    fields = make(torch.float32)
    fields["rollout_log_probs"] = fields["old_log_probs"] + gap
    loss, gradient, stats = evaluate(fields, [correction])
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert all(math.isfinite(value) for value in stats.means().values())


def test_top_entropy_keeps_a_share_of_each_answer():
    """share .2 of lengths 5, 6, 1, 0: ceil gives 1, 2, 1, none."""
    entropy = torch.zeros(4, 7)
    entropy[0, :5] = torch.tensor([0.1, 0.5, 0.2, 0.3, 0.4])
    entropy[1, :6] = torch.tensor([0.9, 0.1, 0.2, 0.3, 0.4, 0.8])
    mask = torch.arange(7) < torch.tensor([5, 6, 1, 0])[:, None]
    zeros = torch.zeros(4, 7)
    made = PolicyBatch(zeros, zeros, zeros, mask, entropy=entropy.masked_fill(~mask, 99.0))
    kept = combined_weights([TopEntropyMask()], made).nonzero().tolist()
    assert kept == [[0, 1], [1, 0], [1, 5], [2, 0]]


@pytest.mark.parametrize(("share", "length", "kept"), [(0.07, 100, 7), (0.2, 15, 3), (0.5, 3, 2)])
def test_top_entropy_counts_exactly(share, length, kept):
    entropy = torch.rand(1, length, generator=torch.Generator().manual_seed(0))
    zeros, mask = torch.zeros(1, length), torch.ones(1, length).bool()
    batch = PolicyBatch(zeros, zeros, zeros, mask, entropy=entropy)
    assert combined_weights([TopEntropyMask(share)], batch).sum() == kept


class Wide(Correction):
    def weights(self, batch):
        return torch.ones(3)


class Negative(Correction):
    def weights(self, batch):
        return -torch.ones_like(batch.advantages)


def test_what_a_correction_of_ones_own_returns_is_checked():
    with pytest.raises(UserError, match=r"Wide.weights returned shape \(3,\); it must be \(N, T\)"):
        evaluate(make(), [Wide()])
    with pytest.raises(FloatingPointError, match=r"Negative.weights returned a negative"):
        evaluate(make(), [Negative()])
    fields = make()
    with pytest.raises(ValueError, match=r"lacks \['rollout_log_probs'\]"):
        evaluate({**fields, "rollout_log_probs": None}, [TruncatedIS()])
    with pytest.raises(ValueError, match=r"lacks \['entropy'\]"):
        evaluate({**fields, "entropy": None}, [TopEntropyMask()])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TruncatedIS("tokens"), "level 'tokens' is unknown; did you mean 'token'"),
        (lambda: TruncatedIS(cap=0), "TruncatedIS: cap must be > 0, got 0"),
        (lambda: MaskedIS(low=2.0, high=0.5), "low 2.0 and high 0.5 must be 0 <= low < high"),
        (lambda: MaskedIS(low=NAN), "low nan and high 2.0"),
        (lambda: OffPolicySequenceMask(-1), "delta must be >= 0, got -1"),
        (lambda: TopEntropyMask(1.0), "share must be above 0 and below 1, got 1.0; remove it"),
        (lambda: check_corrections([TruncatedIS(), MaskedIS()], PPO()), "count it twice; keep one"),
        (lambda: check_corrections([TruncatedIS()] * 2, PPO()), "TruncatedIS more than once"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(build, message):
    with pytest.raises(UserError, match=message):
        build()


def test_an_objective_with_a_ratio_of_its_own_to_the_sampler_takes_no_second_one():
    class Own(PPO):
        needs = frozenset({"rollout_log_probs"})

    with pytest.raises(UserError, match="Own takes its own ratio to the sampler; remove one"):
        check_corrections([TruncatedIS()], Own())
    check_corrections([OffPolicySequenceMask(), TopEntropyMask()], Own())
    check_corrections([MaskedIS(), OffPolicySequenceMask(), TopEntropyMask()], PPO())
