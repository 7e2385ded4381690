"""Loss, clip and metrics with their arithmetic: LOSS-01 to LOSS-19."""

import math

import pytest
import torch
from ragged import ones_like_lengths, rows

from rlzoo.algorithms import CISPO, GRPO, GSPO, PPO
from rlzoo.errors import UserError
from rlzoo.objective.loss import policy_loss
from rlzoo.ops import Denominators
from rlzoo.types import PolicyBatch

NAN = float("nan")


def run(algorithm, log_probs, old, advantages, mask=None, counts=None, **settings):
    """Return loss, gradient of the log-probs and mean metrics."""
    extra = {k: settings.pop(k) for k in ("entropy", "group_ids", "ref_log_probs") if k in settings}
    leaf = log_probs.clone().requires_grad_()
    mask = torch.ones_like(log_probs).bool() if mask is None else mask
    batch = PolicyBatch(leaf, old, advantages, mask, **extra)
    counts = counts or Denominators.count(mask, extra.get("group_ids"))
    loss, stats = policy_loss(algorithm, batch, counts, **settings)
    loss.backward()
    return loss.item(), leaf.grad, stats.means()


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token-mean", 0.5), ("sequence-mean", 0.0), ("constant-length", 0.25)],
)
@pytest.mark.parametrize("micro_batch", [2, 1])
def test_loss_01_does_not_depend_on_the_micro_batch(aggregation, expected, micro_batch):
    """LOSS-01: lengths 1 and 3, r = 1, A = +1 and -1; (-1 + 3) / 4 = 0.5, mean of means 0."""
    mask = ones_like_lengths(1, 3)
    counts = Denominators.count(mask)
    theta = torch.tensor(-1.0, requires_grad=True)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    total = torch.zeros(())
    for start in range(0, 2, micro_batch):
        part = slice(start, start + micro_batch)
        log_probs = theta.expand(micro_batch, 3)
        batch = PolicyBatch(log_probs, log_probs.detach(), advantages[part], mask[part])
        loss, _ = policy_loss(PPO(), batch, counts, aggregation=aggregation, length=4)
        loss.backward()
        total = total + loss.detach()
    assert total.item() == pytest.approx(expected, abs=1e-7)
    assert theta.grad.item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("algorithm", [PPO(), CISPO()], ids=lambda a: type(a).__name__)
def test_loss_03_accumulation_does_not_divide_again(algorithm):
    """LOSS-03: every token's loss is 1, in 4 micro-batches of 4 tokens: 1, and not 0.25."""
    mask = torch.ones(4, 4, dtype=torch.bool)
    log_probs, advantages = torch.full((4, 4), -1.0), torch.full((4, 4), -1.0)
    if isinstance(algorithm, CISPO):  # its value is -A log_probs, so A = 1 makes it 1
        advantages = -advantages
    whole, gradient, _ = run(algorithm, log_probs, log_probs, advantages)
    counts = Denominators.count(mask)
    parts = [
        run(
            algorithm,
            log_probs[i : i + 1],
            log_probs[i : i + 1],
            advantages[i : i + 1],
            None,
            counts,
        )
        for i in range(4)
    ]
    assert whole == pytest.approx(1.0)
    assert sum(part[0] for part in parts) == pytest.approx(1.0)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient)
    assert gradient.abs().sum().item() == pytest.approx(1.0)


def test_loss_04_an_unknown_aggregation_is_refused():
    """LOSS-04: a class may misspell its default, which no type checks; it names the choices."""

    class Misspelt(PPO):
        aggregation = "token_mean"

    ones = torch.ones(1, 2)
    with pytest.raises(UserError, match="'token_mean' is unknown; did you mean 'token-mean'"):
        run(Misspelt(), ones, ones, ones)


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "sequence-mean", "sequence-sum", "constant-length", "prompt-mean"]
)
@pytest.mark.parametrize("algorithm", [PPO(), GSPO(), CISPO()], ids=lambda a: type(a).__name__)
def test_loss_08_nothing_to_train_on(algorithm, aggregation):
    """LOSS-08: loss 0 and gradients that are there and exactly 0, with junk everywhere."""
    junk = torch.full((2, 3), NAN)
    loss, gradient, means = run(
        algorithm,
        junk,
        junk,
        junk,
        torch.zeros(2, 3, dtype=torch.bool),
        aggregation=aggregation,
        group_ids=torch.tensor([0, 1]),
    )
    assert loss == 0
    assert torch.equal(gradient, torch.zeros(2, 3))
    assert "policy/clip_fraction" not in means  # a mean over nothing is left out, not NaN


@pytest.mark.parametrize(
    ("ratio", "advantage", "high", "expected", "flows"),
    [
        (1.5, 1.0, 0.2, -1.2, False),
        (1.5, -1.0, 0.2, 1.5, True),
        (0.5, 1.0, 0.2, -0.5, True),
        (0.5, -1.0, 0.2, 0.8, False),
        (1.5, 1.0, 0.28, -1.28, False),
    ],
)
def test_loss_09_table_of_the_clip(ratio, advantage, high, expected, flows):
    """LOSS-09: min(r A, clip(r) A) and where its gradient, -r A, survives."""
    old, advantages = torch.tensor([[-2.0]]), torch.tensor([[advantage]])
    for algorithm in (PPO(0.2, high), GRPO(0.2, high)):
        loss, gradient, means = run(algorithm, old + math.log(ratio), old, advantages)
        assert loss == pytest.approx(expected)
        assert gradient.item() == pytest.approx(-ratio * advantage if flows else 0.0, abs=1e-12)
        assert means["policy/clip_fraction"] == (0 if flows else 1)


def test_loss_10_cispo_caps_the_weight_and_keeps_the_gradient():
    """LOSS-10: r = 1.5, A = 1, cap 1.28: d/d(log_probs) = -1.28, where PPO has 0."""
    old, one = torch.tensor([[-2.0]]), torch.ones(1, 1)
    _, gradient, means = run(CISPO(ratio_cap=1.28), old + math.log(1.5), old, one)
    assert gradient.item() == pytest.approx(-1.28)
    assert means["policy/clip_fraction"] == 1
    _, gradient, _ = run(CISPO(ratio_cap=2.0), old + math.log(1.5), old, one)
    assert gradient.item() == pytest.approx(-1.5)  # r detached: not -1.5 (1 + log_probs)


def test_loss_11_the_cap_of_cispo_is_absolute_and_no_other_name_is_taken():
    """LOSS-11: r = 7 with cap 5 weighs 5, not 1 + 5; clip_high would mean the other and fails."""
    old = torch.tensor([[-4.0]])
    _, gradient, _ = run(CISPO(ratio_cap=5.0), old + math.log(7.0), old, torch.ones(1, 1))
    assert gradient.item() == pytest.approx(-5.0)
    with pytest.raises(TypeError, match="clip_high"):
        CISPO(clip_high=5.0)


@pytest.mark.parametrize(
    ("cls", "kwargs", "message"),
    [
        (PPO, {"clip_low": -0.1}, "PPO: clip_low must be >= 0, got -0.1"),
        (GSPO, {"clip_high": NAN}, "GSPO: clip_high must be >= 0, got nan"),
        (GRPO, {"clip_low": 1.5}, "GRPO: clip_low 1.5 is above 1"),
        (CISPO, {"ratio_cap": -1.0}, "CISPO: ratio_cap must be >= 0, got -1.0"),
    ],
)
def test_bounds_outside_their_range_are_refused(cls, kwargs, message):
    with pytest.raises(UserError, match=message):
        cls(**kwargs)


def test_loss_12_gspo_weighs_answers_alike():
    """LOSS-12: lengths 2 and 8, A = +1 and -1, s = 1: 0; weighing tokens alike gives 0.6."""
    mask, theta = ones_like_lengths(2, 8), torch.tensor(-1.0, requires_grad=True)
    log_probs = theta.expand(2, 8)
    batch = PolicyBatch(
        log_probs, log_probs.detach(), torch.tensor([[1.0], [-1.0]]).expand(2, 8), mask
    )
    counts = Denominators.count(mask)
    loss, _ = policy_loss(GSPO(), batch, counts)
    (gradient,) = torch.autograd.grad(loss, theta)
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    assert gradient.item() == pytest.approx(0.0, abs=1e-7)
    wrong, _ = policy_loss(GSPO(), batch, counts, aggregation="token-mean")
    assert wrong.item() == pytest.approx(0.6)


@pytest.mark.parametrize("junk", [99.0, NAN])
def test_loss_13_padding_is_not_in_the_length_of_an_answer(junk):
    """LOSS-13: log-ratios [.03, .03, pad]: s = e^.03 = 1.030455, and not e^.02 = 1.020201."""
    old = torch.full((1, 3), -1.0, dtype=torch.float64)
    log_probs = old + torch.tensor([[0.03, 0.03, junk]])
    mask = torch.tensor([[True, True, False]])
    ones = torch.ones(1, 3, dtype=torch.float64)
    batch = PolicyBatch(log_probs, old, ones, mask)
    assert GSPO().ratio(batch).item() == pytest.approx(1.030455, abs=1e-6)
    loss, gradient, _ = run(GSPO(), log_probs, old, ones, mask)
    assert loss == pytest.approx(-1.0004)
    assert not gradient.any()
    loss, gradient, _ = run(GSPO(), log_probs, old, -ones, mask)
    assert loss == pytest.approx(1.030455, abs=1e-6)
    assert gradient[0].tolist() == pytest.approx([1.030455 / 2, 1.030455 / 2, 0.0], abs=1e-6)


def test_loss_14_rounding_old_log_probs_to_bf16_leaves_the_band_of_gspo():
    """LOSS-14: -2.0049 is -2.0 in bf16: s = e^-.0049 = 0.99511, out of [1 - 3e-4, 1 + 4e-4]."""
    exact, ones = torch.full((1, 4), -2.0049), torch.ones(1, 4)
    loss, _, means = run(GSPO(), exact, exact, -ones)
    assert loss == 1.0
    assert means["policy/ratio_mean"] == 1.0
    assert means["policy/clip_fraction"] == 0
    loss, gradient, means = run(GSPO(), exact, exact.to(torch.bfloat16), -ones)
    assert means["policy/ratio_mean"] == pytest.approx(0.99511, abs=1e-5)
    assert means["policy/clip_fraction"] == 1
    assert not gradient.any()
    assert loss == pytest.approx(1 - 3e-4)


def test_loss_16_nan_in_a_masked_old_log_prob():
    """LOSS-16: lp [0, 0], old [0, NaN], A = 1, mask [1, 0]: loss -1, gradient [-1, 0], KL 0."""
    zeros = torch.zeros(1, 2)
    loss, gradient, means = run(
        PPO(), zeros, rows([0.0, NAN]), zeros + 1, torch.tensor([[True, False]])
    )
    assert loss == -1.0
    assert gradient.tolist() == [[-1.0, 0.0]]
    assert means["policy/kl_old"] == 0


@pytest.mark.parametrize(
    "algorithm", [PPO(), GRPO(), GSPO(), CISPO()], ids=lambda a: type(a).__name__
)
def test_loss_17_a_ratio_that_would_overflow(algorithm):
    """LOSS-17: lp -1, old -101: A = 0 gives 0 and A = -1 a finite loss, counted as bounded."""
    lp, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-101.0, -101.0]])
    loss, gradient, means = run(algorithm, lp, old, torch.zeros(1, 2))
    assert loss == 0
    assert not gradient.any()
    loss, gradient, means = run(algorithm, lp, old, -torch.ones(1, 2))
    assert math.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert means["policy/ratio_bounded"] == 1
    assert means["policy/log_ratio_abs_max"] == 100


@pytest.mark.parametrize("bad", [NAN, float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name",
    ["log_probs", "old_log_probs", "advantages", "ref_log_probs", "rollout_log_probs", "entropy"],
)
def test_loss_17_a_bad_number_that_is_not_masked_is_named(name, bad):
    """LOSS-17: junk under the mask is nothing; in a token that trains it stops the run."""
    fields = {
        key: torch.zeros(2, 3)
        for key in (
            "log_probs",
            "old_log_probs",
            "advantages",
            "ref_log_probs",
            "rollout_log_probs",
            "entropy",
        )
    }
    mask = ones_like_lengths(3, 2)
    fields[name][1, 2] = bad
    counts = Denominators.count(mask)
    policy_loss(PPO(), PolicyBatch(**fields, mask=mask), counts)
    fields[name][1, 1] = bad
    with pytest.raises(FloatingPointError, match=f"{name} is {bad} at row 1, token 1"):
        policy_loss(PPO(), PolicyBatch(**fields, mask=mask), counts)


def test_loss_18_entropy_bonus():
    """LOSS-18: uniform over 4 tokens is ln 4 = 1.386294; coefficient c lowers the loss by c H."""
    entropy = rows([math.log(4), math.log(4), NAN])
    zeros, mask = torch.zeros(1, 3), torch.tensor([[True, True, False]])
    losses = {}
    for coefficient in (0.0, 0.01, 0.1):
        losses[coefficient], _, means = run(
            PPO(), zeros, zeros, zeros, mask, entropy=entropy, entropy_coefficient=coefficient
        )
        assert means["policy/entropy"] == pytest.approx(1.386294, abs=1e-6)
    assert losses[0.0] == 0
    assert losses[0.01] == pytest.approx(-0.01386294, abs=1e-7)
    assert losses[0.1] == pytest.approx(-0.1386294, abs=1e-7)


def test_loss_18_entropy_is_a_mean_over_tokens_whatever_the_aggregation():
    entropy = rows([1.0], [3.0, 3.0, 3.0], fill=NAN)
    mask, zeros = ones_like_lengths(1, 3), torch.zeros(2, 3)
    for aggregation in ("token-mean", "sequence-mean", "constant-length"):
        loss, _, _ = run(
            PPO(),
            zeros,
            zeros,
            zeros,
            mask,
            entropy=entropy,
            entropy_coefficient=1.0,
            aggregation=aggregation,
            length=9,
        )
        assert loss == pytest.approx(-2.5)  # -(1 + 9) / 4


def test_loss_19_metrics_of_a_ratio_per_answer_count_tokens():
    """LOSS-19: s = 1 in both answers of lengths 1 and 3, given as (N, 1): mean and max are 1."""
    zeros = torch.zeros(2, 3)
    _, _, means = run(GSPO(), zeros, zeros, zeros + 1, ones_like_lengths(1, 3))
    assert means["policy/ratio_mean"] == 1
    assert means["policy/ratio_max"] == 1


def test_clip_fractions_count_tokens_and_whole_answers():
    """Tokens r = [1.5, 1, 1.5 | 1.5], A = 1: 3 of 4 tokens clipped, 1 of 2 answers wholly."""
    old, mask = torch.full((3, 3), -3.0), ones_like_lengths(3, 1, 0)
    log_probs = old + rows([0.5, 0.0, 0.5], [0.5, NAN, NAN], [NAN, NAN, NAN])
    _, _, means = run(PPO(), log_probs, old, torch.ones(3, 3), mask)
    assert means["policy/clip_fraction"] == 0.75
    assert means["policy/clipped_answers"] == 0.5
    assert means["policy/ratio_max"] == pytest.approx(math.exp(0.5))
    assert means["policy/kl_old"] == pytest.approx(0.75 * (math.exp(0.5) - 1.5))
