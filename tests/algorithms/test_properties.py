"""What every objective of the zoo owes, checked for whatever `discover()` finds.

An objective is named here only where its paper breaks a rule on purpose: then the rule has to be
broken indeed, so that an entry that is no longer true fails.
"""

import contextlib
from itertools import combinations

import pytest
import torch

from rlzoo.algorithms import discover
from rlzoo.objective.loss import KLPenalty, policy_loss
from rlzoo.ops import Denominators, aggregation_weights
from rlzoo.types import PolicyBatch
from rlzoo.types.stats import Stats

LENGTHS = (5, 1, 3, 0, 4, 2)  # ragged, one answer empty
GROUPS = (0, 0, 1, 1, 2, 2)
DRIFT = (1e-4, 0.3, 0.1, 0.0, 1e-4, 0.8)  # some rows hardly move, some leave every band
FLOATS = ("log_probs", "old_log_probs", "rollout_log_probs", "ref_log_probs", "advantages")
NOT_REINFORCE_AT_RATIO_ONE = {  # class: why the gradient is not A where new and old agree
    "GEPO": "the denominator is the group's, so the ratio is 1 only where all answers are as likely",
    "REAL": "a classifier's gradient: of A it reads the sign, and its weights are a softmax",
    "GTPO": "shared tokens weigh 0 or more than 1, and entropy is taken off the advantage",
    "ClipCov": "tokens are taken out for their covariance, whatever their ratio",
}
MOVES_WITHOUT_ADVANTAGE = {
    "GTPO": "its entropy penalty stands where an advantage would",
    "DRO": "the squared log-ratio pulls every token back to the old policy, whatever its advantage",
}
FULL = {"kl": KLPenalty(0.05), "entropy_coefficient": 0.01, "length": 7}


# Settings at which an objective does on fifteen tokens what its defaults do on a million.
ENOUGH = {
    "ClipCov": {"covariance_low": 0.01, "share": 0.2},
    "KLCov": {"share": 0.2},
    "GTPO": {"entropy_cap": 1.0},
}


@pytest.fixture(params=sorted(discover()))
def algorithm(request):
    return discover()[request.param](**ENOUGH.get(request.param, {}))


def make(dtype=torch.float64, per_token=True):
    """A batch that fills every field there is, so that whatever an objective needs is there."""
    rng = torch.Generator().manual_seed(5)

    def normal():
        return torch.randn(len(LENGTHS), max(LENGTHS), generator=rng, dtype=torch.float64)

    old = -normal().abs() - 0.1
    good_and_bad = torch.tensor([0.6, -0.6] * (len(LENGTHS) // 2)).double()[:, None]
    advantages = normal() + good_and_bad if per_token else normal()[:, :1].expand_as(old)
    fields = {
        "log_probs": old + normal() * torch.tensor(DRIFT).double()[:, None],
        "old_log_probs": old,
        "rollout_log_probs": old + 0.05 * normal(),
        "ref_log_probs": old + 0.3 * normal(),
        "advantages": advantages,
        "entropy": normal().abs(),
    }
    fields = {name: value.to(dtype) for name, value in fields.items()}
    token_ids = torch.randint(3, 5, (len(LENGTHS), max(LENGTHS)), generator=rng)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return {**fields, "mask": mask, "group_ids": torch.tensor(GROUPS), "token_ids": token_ids}


def evaluate(algorithm, fields, denominators=None, **settings):
    """Return loss, gradients of log-probs and of entropy, and statistics."""
    leaves = {k: fields[k].clone().requires_grad_() for k in ("log_probs", "entropy")}
    batch = PolicyBatch(**{**fields, **leaves})
    denominators = denominators or Denominators.count(batch.mask, batch.group_ids)
    loss, stats = policy_loss(algorithm, batch, denominators, **settings)
    loss.backward()
    return loss.detach(), [leaf.grad for leaf in leaves.values()], stats


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_at_ratio_one_the_gradient_is_reinforce(algorithm):
    """Before any mean, d(sum of surrogate)/d(log_probs) = A * mask; the loss carries -w A."""
    fields = make(per_token=False)
    fields["rollout_log_probs"] = fields["old_log_probs"]  # sampled with these very weights
    leaf = fields["old_log_probs"].clone().requires_grad_()
    batch = PolicyBatch(**{**fields, "log_probs": leaf})
    surrogate = algorithm.clip(algorithm.ratio(batch), batch)
    total = torch.where(batch.mask, surrogate.objective, 0.0).sum()
    (gradient,) = torch.autograd.grad(total, leaf)
    expected = torch.where(batch.mask, fields["advantages"], 0.0)
    if type(algorithm).__name__ in NOT_REINFORCE_AT_RATIO_ONE:
        assert not torch.allclose(gradient, expected, rtol=1e-3)
        return
    close(gradient, expected)

    counts = Denominators.count(batch.mask, batch.group_ids)
    weights = aggregation_weights(
        batch.mask, counts, algorithm.aggregation, length=7, group_ids=batch.group_ids
    )
    same = {**fields, "log_probs": fields["old_log_probs"]}
    _, (gradient, _), stats = evaluate(algorithm, same, length=7)
    close(gradient, -weights * expected)
    assert stats.means()["policy/clip_fraction"] == 0


def widened(fields, extra, junk):
    """The same batch with more columns, and with junk in every masked slot of every field."""
    mask = torch.nn.functional.pad(fields["mask"], (0, extra))
    wide = {"mask": mask, "group_ids": fields["group_ids"]}
    for name in fields.keys() - wide.keys():
        value = torch.nn.functional.pad(fields[name], (0, extra))
        wide[name] = value.masked_fill(
            ~mask, junk if value.is_floating_point() else bool(junk) * 10**9
        )
    return wide


@pytest.mark.parametrize("extra", [0, 1, 4, 11, 59])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf, 1e9])
def test_what_padding_holds_changes_not_a_bit(algorithm, junk, extra):
    zeros = evaluate(algorithm, widened(make(torch.float32), extra, 0), **FULL)
    loss, gradients, stats = evaluate(algorithm, widened(make(torch.float32), extra, junk), **FULL)
    assert torch.equal(loss, zeros[0])
    mask = widened(make(), extra, 0)["mask"]
    for ours, theirs in zip(gradients, zeros[1], strict=True):
        assert torch.equal(ours, theirs)
        assert not ours[~mask].any()
    assert stats.means() == zeros[2].means()
    assert len(stats.means()) >= 9


@pytest.mark.parametrize("extra", [1, 4, 11, 59])
def test_how_wide_padding_is_changes_nothing(algorithm, extra):
    """Loss and metrics bit for bit; a gradient summed over columns may round once more."""
    loss, gradients, stats = evaluate(algorithm, make(torch.float32), **FULL)
    wide = widened(make(torch.float32), extra, torch.nan)
    other_loss, other_gradients, other_stats = evaluate(algorithm, wide, **FULL)
    assert torch.equal(other_loss, loss)
    assert other_stats.means() == stats.means()
    for ours, theirs in zip(other_gradients, gradients, strict=True):
        torch.testing.assert_close(ours[:, : max(LENGTHS)], theirs, rtol=3e-7, atol=0)


def test_row_order_changes_nothing(algorithm):
    fields = make()
    loss, gradients, stats = evaluate(algorithm, fields, **FULL)
    order = torch.tensor([4, 0, 3, 5, 1, 2])
    other_loss, other_gradients, other_stats = evaluate(
        algorithm, {name: value[order] for name, value in fields.items()}, **FULL
    )
    close(other_loss, loss)
    for ours, theirs in zip(other_gradients, gradients, strict=True):
        close(ours, theirs[order])
    assert other_stats.means() == pytest.approx(stats.means(), rel=1e-12, abs=1e-14)


def places_to_cut(algorithm):
    """Where a step of six rows may be cut: anywhere, between prompts, or not at all."""
    between = [row for row in range(1, len(GROUPS)) if GROUPS[row] != GROUPS[row - 1]]
    return {"row": range(1, len(GROUPS)), "group": between, "minibatch": []}[algorithm.unit]


def test_every_micro_batch_split_adds_up(algorithm):
    """All ways to cut 6 rows, each part cut to its own width; a padding pass adds exactly 0."""
    whole = make()
    counts = Denominators.count(whole["mask"], whole["group_ids"])
    loss, gradients, stats = evaluate(algorithm, whole, **FULL)
    rows, places = len(LENGTHS), places_to_cut(algorithm)
    for size in range(len(places) + 1):
        for cuts in combinations(places, size):
            total, parts, several = 0.0, [], Stats()
            for start, stop in zip((0, *cuts), (*cuts, rows), strict=True):
                width = max(1, *LENGTHS[start:stop], 0)
                part = {
                    name: value[start:stop] if value.ndim == 1 else value[start:stop, :width]
                    for name, value in whole.items()
                }
                share, grads, more = evaluate(algorithm, part, counts, **FULL)
                total = total + share
                pad = (0, max(LENGTHS) - width)
                parts.append([torch.nn.functional.pad(grad, pad) for grad in grads])
                several.merge([more])
            close(total, loss)
            for ours, theirs in zip(zip(*parts, strict=True), gradients, strict=True):
                close(torch.cat(ours), theirs)
            assert several.means() == pytest.approx(stats.means(), rel=1e-12, abs=1e-14)

    filler = {**whole, "mask": torch.zeros_like(whole["mask"])}
    share, grads, more = evaluate(algorithm, filler, counts, **FULL)
    assert share == 0
    assert all(grad is not None and not grad.any() for grad in grads)
    assert several.merge([more]).means() == pytest.approx(stats.means(), rel=1e-12, abs=1e-14)


def test_zero_advantage_gives_zero_gradient(algorithm):
    fields = make(torch.float32)
    fields["advantages"] = torch.zeros_like(fields["advantages"])
    _, (gradient, _), _ = evaluate(algorithm, fields)
    assert gradient is not None
    moves = type(algorithm).__name__ in MOVES_WITHOUT_ADVANTAGE
    assert torch.equal(gradient, torch.zeros_like(gradient)) != moves


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("drift", [100.0, -100.0])
def test_finite_at_a_log_ratio_of_100(algorithm, drift, advantage):
    fields = make(torch.float32)
    fields["old_log_probs"] = fields["log_probs"] - drift
    fields["advantages"] = torch.full_like(fields["advantages"], advantage)
    loss, gradients, stats = evaluate(algorithm, fields, **FULL)
    assert torch.isfinite(loss)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    means = stats.means()
    assert all(abs(value) < float("inf") for value in means.values())
    assert means["policy/ratio_bounded"] == 1


def test_extreme_tokens_leave_the_others_alone(algorithm):
    """One row at a log-ratio of 100: no row that it is not computed with may notice."""
    fields = make(torch.float32, per_token=False)
    fields["log_probs"] = fields["old_log_probs"].clone()
    _, (before, _), _ = evaluate(algorithm, fields)
    fields["old_log_probs"] = fields["old_log_probs"].clone()
    fields["old_log_probs"][0] += 100.0
    _, (after, _), _ = evaluate(algorithm, fields)
    assert torch.isfinite(after).all()
    untouched = {"row": 1, "group": GROUPS.index(1), "minibatch": len(GROUPS)}[algorithm.unit]
    assert torch.equal(after[untouched:], before[untouched:])


class _Constants:
    """Replays what `detach` returned the first time, so that differences see a constant too."""

    def __init__(self):
        self.values, self.next, self.original = [], 0, torch.Tensor.detach

    @contextlib.contextmanager
    def __call__(self):
        self.next, constants = 0, self

        def detach(tensor):
            if constants.next == len(constants.values):
                constants.values.append(constants.original(tensor).clone())
            constants.next += 1
            return constants.values[constants.next - 1]

        torch.Tensor.detach = detach
        try:
            yield
        finally:
            torch.Tensor.detach = self.original


def test_gradient_is_the_derivative(algorithm):
    """Central differences in float64; a weight under `detach` is held, as stop-gradient means."""
    fields, constants = make(), _Constants()
    counts = Denominators.count(fields["mask"], fields["group_ids"])

    def loss(log_probs, entropy):
        batch = PolicyBatch(**{**fields, "log_probs": log_probs, "entropy": entropy})
        with constants():
            return policy_loss(algorithm, batch, counts, **FULL).loss

    leaves = [fields[k].clone().requires_grad_() for k in ("log_probs", "entropy")]
    assert torch.autograd.gradcheck(loss, leaves, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_half_precision_is_upcast_before_any_arithmetic(algorithm):
    """bf16 fields give the bits of the same rounded numbers in fp32."""
    half = {
        name: value.to(torch.bfloat16) if value.is_floating_point() else value
        for name, value in make().items()
    }
    rounded = {
        name: value.float() if value.is_floating_point() else value for name, value in half.items()
    }
    loss, gradients, stats = evaluate(algorithm, half, **FULL)
    expected, expected_gradients, expected_stats = evaluate(algorithm, rounded, **FULL)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert stats.means() == expected_stats.means()
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(ours, theirs.to(torch.bfloat16))


def test_no_gradient_reaches_what_is_given(algorithm):
    """Old, rollout and reference log-probs and advantages are data, even if they carry a graph."""
    fields = make()
    for name in FLOATS:
        fields[name] = fields[name].clone().requires_grad_()
    batch = PolicyBatch(**fields)
    loss, _ = policy_loss(algorithm, batch, Denominators.count(batch.mask), kl=KLPenalty(0.05))
    loss.backward()
    assert fields["log_probs"].grad is not None
    for name in FLOATS[1:]:
        assert fields[name].grad is None, name
