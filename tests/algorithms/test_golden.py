"""Replay of worked values (float64, gradients checked by central differences) from tests/golden.

To cover a new objective, add one line to OBJECTIVES: every key of the file is replayed, or named
in CORRECTIONS because it is no objective.
"""

import json
from pathlib import Path

import pytest
import torch

from rlzoo.advantages import (
    GAE,
    GroupCentered,
    GroupNormalized,
    Groups,
    LeaveOneOut,
    Outcome,
    generalized_advantages,
    whiten,
)
from rlzoo.algorithms import discover
from rlzoo.objective.gradient_weight import sources
from rlzoo.objective.loss import KLPenalty, policy_loss, value_loss
from rlzoo.ops import Denominators, aggregation_weights, out_of_band
from rlzoo.types import PolicyBatch

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "objectives.json").read_text())

BAND = {"clip_low": "eps_low", "clip_high": "eps_high"}
TV = {"divergence_low": "delta_low", "divergence_high": "delta_high", "ratio_cap": "ratio_cap"}
# Key of the file: (class, its argument -> name among the file's inputs, or a number).
OBJECTIVES = {
    "ppo_clip": ("PPO", BAND),
    "ppo_clip_token_advantages": ("PPO", BAND),
    "ppo_dual_clip": ("PPO", {**BAND, "dual_clip_cap": "dual_clip_c"}),
    "two_sided_delta4": ("PPO", {**BAND, "dual_clip_cap": "delta"}),
    "grpo": ("GRPO", BAND),
    "grpo_kl_k1": ("GRPO", BAND),
    "grpo_kl_k2": ("GRPO", BAND),
    "grpo_kl_k3": ("GRPO", BAND),
    "grpo_kl_k3_unbiased": ("GRPO", BAND),
    "dr_grpo": ("DrGRPO", BAND),
    "dapo": ("DAPO", BAND),
    "gspo": ("GSPO", BAND),
    "gspo_token": ("GSPOToken", BAND),
    "luspo": ("LUSPO", BAND),
    "cispo": ("CISPO", {"ratio_cap": "ratio_cap"}),
    "sapo": ("SAPO", {"tau_pos": "tau_pos", "tau_neg": "tau_neg"}),
    "gmpo": ("GMPO", {"log_clip_low": "eps_log_low", "log_clip_high": "eps_log_high"}),
    "reinforce": ("REINFORCE", {}),
    "rloo_trl_seq_clip": ("RLOOSequenceClip", BAND),
    "gepo": ("GEPO", BAND),
    "real": ("REAL", {"tau": "tau"}),
    "gtpo": ("GTPO", {"entropy_penalty": "gamma"}),
    "clip_cov": (
        "ClipCov",
        {**BAND, "covariance_low": "cov_lb", "covariance_high": "cov_ub", "share": 1.0},
    ),
    "kl_cov": ("KLCov", {"share": "kl_cov_ratio", "penalty": "ppo_kl_coef"}),
    "topr": ("TOPR", {}),
    "aspo": ("ASPO", {**BAND, "weight_cap": "weight_cap"}),
    "dppo_tv": ("DPPOTV", TV),
    "dppo_kl": ("DPPOKL", TV),
    "minirl": ("MiniRL", {**BAND, "weight_cap": "tis_cap"}),
    "dro": ("DRO", {"beta": "beta"}),
    "vespo": (
        "VESPO",
        {name: name for name in ("k_pos", "k_neg", "lambda_pos", "lambda_neg")},
    ),
    "fipo": (
        "FIPO",
        {**BAND, "half_life": "decay_rate", "weight_floor": 0.8, "weight_cap": 1.2},
    ),
}
# Weights for the gap between sampler and trainer, which multiply the loss of any objective.
CORRECTIONS = {
    *("tis_token", "tis_sequence", "tis_geometric"),
    *("mis_token", "mis_sequence", "mis_geometric"),
    "grpo_opsm",
}
AGGREGATIONS = {
    "token_mean": "token-mean",
    "seq_mean_token_mean": "sequence-mean",
    "seq_mean": "sequence-mean",
    "seq_mean(len * surrogate)": "sequence-sum",
    "seq_mean_token_sum": "sequence-sum",
    "seq_mean_token_sum_norm(L=8)": "constant-length",
    "group": "prompt-mean",
}
# The answer's one term, cut into equal shares of its tokens, is put together by their sum.
SHARED_OUT = {"rloo_trl_seq_clip": "sequence-sum"}
OPTIONAL = {
    "logp_rollout": "rollout_log_probs",
    "logp_ref": "ref_log_probs",
    "entropy": "entropy",
    "group_id": "group_ids",
    "token_ids": "token_ids",
}
CASES = [
    pytest.param(key, case, id=f"{key}-{case['notes'].split(';')[0]}".replace(" ", "_"))
    for key in OBJECTIVES
    for case in GOLDEN["algorithms"][key]
]
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    # In float32 a loss near 0 is a difference of terms near 1, hence the absolute part.
    [(torch.float64, 1e-12, 1e-12), (torch.float32, 1e-5, 1e-6)],
    ids=["float64", "float32"],
)


def tensor(values, dtype=torch.float64):
    width = max(len(row) for row in values)
    return torch.tensor([row + [0.0] * (width - len(row)) for row in values], dtype=dtype)


def batch_of(inputs, dtype):
    log_probs = tensor(inputs["logp_new"], dtype).requires_grad_()
    advantages = torch.tensor(inputs["advantages"], dtype=dtype)
    if advantages.ndim == 1:
        advantages = advantages[:, None].expand_as(log_probs)
    extra = {}
    for name, field in OPTIONAL.items():
        if name in inputs:
            per_row = field == "group_ids"
            kind = torch.long if field in ("group_ids", "token_ids") else dtype
            extra[field] = torch.tensor(inputs[name]) if per_row else tensor(inputs[name], kind)
    if "mean_entropy" in inputs:  # gtpo: one number per answer, and all answers one group
        rows = torch.tensor(inputs["mean_entropy"], dtype=dtype)
        extra["entropy"] = rows[:, None].expand_as(log_probs)
        extra["group_ids"] = torch.zeros(len(rows)).long()
    batch = PolicyBatch(
        log_probs=log_probs,
        old_log_probs=tensor(inputs["logp_old"], dtype),
        advantages=advantages,
        mask=tensor(inputs["mask"]).bool(),
        **extra,
    )
    return log_probs, batch


def penalty_of(inputs):
    if not inputs.get("beta"):
        return None
    kind = inputs.get("kl", "k3")
    return KLPenalty(
        coefficient=inputs["beta"],
        estimator=kind.removesuffix("_unbiased"),
        ratio_corrected=kind.endswith("_unbiased"),
    )


def build(key, inputs):
    name, arguments = OBJECTIVES[key]
    given = {
        ours: inputs[theirs] if isinstance(theirs, str) else theirs
        for ours, theirs in arguments.items()
    }
    return discover()[name](**given)


def reported_ratio(key, ratio, batch, outputs):
    """What the file calls the ratio of an objective, from ours."""
    if key == "topr":  # the capped weight, of negative answers only
        return torch.where(batch.advantages[:, :1] < 0, ratio.clamp(max=1), 1.0)
    if key == "vespo":  # the weight phi(W), checked below; W is given beside it
        outputs["ratio"] = outputs["W_seq"]
    return ratio.log() if key == "real" else ratio


def check_clipped(key, clipped, ratio, means, batch, expected):
    if "clip_mask" in expected:
        assert torch.equal(clipped, tensor(expected["clip_mask"]).bool())
    if "clip_mask_seq" in expected:
        whole = torch.tensor(expected["clip_mask_seq"]).bool()
        assert torch.equal(clipped, whole[:, None] & batch.mask)
        share = expected["clip_fraction_sequences"]
        assert means["policy/clipped_answers"] == pytest.approx(share, abs=1e-12)
    if key in ("clip_cov", "kl_cov"):
        selected = tensor(expected["selected"]).bool()
        by_ppo = out_of_band(ratio, batch.advantages, 0.2, 0.2) & (key == "clip_cov")
        assert torch.equal(clipped, selected | by_ppo & batch.mask)
        assert not (selected & by_ppo).any()
    fraction = means["policy/clip_fraction"]
    if key == "clip_cov":  # the file counts what the covariance took out, and not PPO's clip
        fraction = selected[batch.mask].double().mean().item()
    if key == "topr":  # the file counts among negative answers
        fraction = clipped[batch.mask & (batch.advantages < 0)].double().mean().item()
    assert fraction == pytest.approx(expected["clip_fraction"], abs=1e-12)


@PRECISIONS
@pytest.mark.parametrize(("key", "case"), CASES)
def test_loss_gradient_clip_mask_and_ratio(key, case, dtype, rtol, atol):
    inputs, expected = case["inputs"], dict(case["outputs"])
    algorithm = build(key, inputs)
    assert algorithm.aggregation == SHARED_OUT.get(key, AGGREGATIONS[case["aggregation"]])
    log_probs, batch = batch_of(inputs, dtype)
    loss, stats = policy_loss(
        algorithm,
        batch,
        Denominators.count(batch.mask, batch.group_ids),
        length=inputs.get("L", 1),
        kl=penalty_of(inputs) if key.startswith("grpo_kl") else None,
    )
    (gradient,) = torch.autograd.grad(loss, log_probs)

    def same(ours, theirs):
        theirs = torch.as_tensor(theirs, dtype=dtype)
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)

    same(loss.detach(), expected["loss"])
    same(gradient, tensor(expected["grad_logp_new"]))
    assert not gradient[~batch.mask].any()

    ratio = algorithm.ratio(batch).detach()
    surrogate = algorithm.clip(ratio, batch)
    clipped = surrogate.clipped & batch.mask
    check_clipped(key, clipped, ratio, stats.means(), batch, expected)
    if key == "vespo":
        weight = surrogate.objective / (batch.advantages * batch.log_probs)
        same(weight[:, 0].detach(), expected["ratio"])
    ratio = reported_ratio(key, ratio, batch, expected)
    same(ratio.squeeze(-1) if ratio.shape[-1] == 1 else ratio, expected["ratio"])


def test_every_worked_objective_is_replayed_and_every_published_one_is_worked():
    """Worked values are asked of an objective that cites a source for them."""
    assert set(OBJECTIVES) | CORRECTIONS == set(GOLDEN["algorithms"])
    replayed = {name for name, _ in OBJECTIVES.values()}
    published = {name for name, cls in discover().items() if sources(cls)}
    # RLOO is REINFORCE with another advantage.
    assert published <= replayed | {"RLOO"} <= set(discover())


@PRECISIONS
@pytest.mark.parametrize("name", GOLDEN["edge_cases"])
def test_edge_cases(name, dtype, rtol, atol):
    """LOSS-07, LOSS-08: a fully masked row leaves the counts; equal rewards leave only the KL."""
    case = GOLDEN["edge_cases"][name]
    inputs, expected = case["inputs"], case["outputs"]
    log_probs, batch = batch_of(inputs, dtype)
    loss, stats = policy_loss(
        build("grpo", inputs),
        batch,
        Denominators.count(batch.mask),
        aggregation=AGGREGATIONS.get(case["aggregation"], "sequence-mean"),
        length=8,
        kl=penalty_of(inputs),
    )
    (gradient,) = torch.autograd.grad(loss, log_probs)
    # TRL leaves the empty row in the denominator, which halves its value; ours leaves it out.
    times = 2 if name == "second_row_fully_masked_trl_grpo" else 1
    torch.testing.assert_close(
        loss.detach(), torch.tensor(times * expected["loss"], dtype=dtype), rtol=rtol, atol=atol
    )
    torch.testing.assert_close(
        gradient, times * tensor(expected["grad_logp_new"], dtype), rtol=rtol, atol=atol
    )
    assert stats.means()["policy/clip_fraction"] == pytest.approx(expected["clip_fraction"])


@pytest.mark.parametrize(
    ("aggregation", "key"),
    [
        ("token-mean", "token_mean"),
        ("sequence-mean", "seq_mean_token_mean"),
        ("sequence-sum", "seq_mean_token_sum"),
        ("constant-length", "seq_mean_token_sum_norm_L8"),
    ],
)
def test_aggregations_of_one_table_differ_as_worked(aggregation, key):
    """LOSS-04: token losses [1, 2, 3] and [10, 20], padding 50."""
    table = GOLDEN["misc"]["aggregation_compare"]
    mask = tensor(table["mask"]).bool()
    weights = aggregation_weights(mask, Denominators.count(mask), aggregation, length=8)
    assert float((weights * tensor(table["per_token_loss"])).sum()) == pytest.approx(table[key])


ESTIMATORS = [
    (GroupNormalized, "grpo_ddof1_eps1e4_trl"),
    (GroupCentered, "dr_grpo"),
    (LeaveOneOut, "rloo"),
]


@pytest.mark.parametrize("rewards", ["binary8", "all_equal4", "real3"])
@pytest.mark.parametrize(("estimator", "key"), ESTIMATORS, ids=lambda x: getattr(x, "name", None))
def test_group_advantages(estimator, key, rewards):
    table = GOLDEN["advantages"][rewards]
    scores = torch.tensor(table["rewards"], dtype=torch.float64)
    valid, ids = torch.ones(len(scores), dtype=torch.bool), torch.zeros(len(scores)).long()
    exact = estimator().of_groups(Groups(scores, ids, valid))
    expected = torch.tensor(table[key], dtype=torch.float64)
    torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-12)

    mask = torch.ones(len(scores), 2, dtype=torch.bool)
    mask[0, 1] = False
    rows = estimator()(Outcome(scores.float(), valid, ids, mask)).advantages
    torch.testing.assert_close(rows[:, 0], expected.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(rows[1:, 1], rows[1:, 0])
    assert rows[0, 1] == 0
    if table["degenerate"]:
        assert not rows.any()
    elif estimator is GroupNormalized:  # the other conventions are other numbers
        for other in ("grpo_ddof1_eps1e6", "grpo_ddof0_eps1e4_grpozero"):
            wrong = torch.tensor(table[other], dtype=torch.float64)
            assert (exact - wrong).abs().max() > 1e-6


@pytest.mark.parametrize("junk", [None, torch.nan, torch.inf])
@pytest.mark.parametrize("key", GOLDEN["advantages"]["gae"]["results"])
def test_gae(key, junk):
    table = GOLDEN["advantages"]["gae"]
    gamma, lam = (float(part.lstrip("gamlbd")) for part in key.split("_"))
    mask = tensor(table["mask"]).bool()
    rewards, values = tensor(table["rewards"]), tensor(table["values"])
    if junk is not None:
        rewards, values = rewards.masked_fill(~mask, junk), values.masked_fill(~mask, junk)
    expected = {k: tensor(v) for k, v in table["results"][key].items()}
    ours = generalized_advantages(rewards, values, mask, gamma=gamma, lam=lam)
    torch.testing.assert_close(ours.advantages, expected["advantages"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.returns, expected["returns"], rtol=1e-12, atol=1e-12)
    whitened = whiten(ours.advantages, mask)
    torch.testing.assert_close(whitened, expected["whitened"], rtol=1e-12, atol=1e-12)
    # The wrong trace decay is a different answer, so the numbers above do test it.
    wrong = generalized_advantages(rewards, values, mask, gamma=gamma, lam=lam - 0.5)
    assert (wrong.advantages - expected["advantages"]).abs().max() > 0.01

    # The class: the score of each answer arrives on its last token.
    outcome = Outcome(
        rewards=torch.tensor([1.0, -0.5], dtype=torch.float64),
        valid=torch.tensor([True, True]),
        group_ids=torch.tensor([0, 0]),
        mask=mask,
        values=values,
    )
    estimate = GAE(gamma=gamma, lam=lam)(outcome)
    torch.testing.assert_close(estimate.advantages, whitened, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(estimate.returns, expected["returns"], rtol=1e-12, atol=1e-12)


@PRECISIONS
@pytest.mark.parametrize("key", GOLDEN["value_loss"]["results"])
def test_value_loss(key, dtype, rtol, atol):
    table = GOLDEN["value_loss"]
    expected = table["results"][key]
    values = tensor(table["values_new"], dtype).requires_grad_()
    mask = tensor(table["mask"]).bool()
    loss, stats = value_loss(
        values,
        tensor(table["values_old"], dtype),
        tensor(table["returns"], dtype),
        mask,
        Denominators.count(mask),
        clip=float(key.removeprefix("eps")),
    )
    (gradient,) = torch.autograd.grad(loss, values)
    torch.testing.assert_close(
        loss.detach(), torch.tensor(expected["loss"], dtype=dtype), rtol=rtol, atol=atol
    )
    torch.testing.assert_close(
        gradient, tensor(expected["grad_values_new"], dtype), rtol=rtol, atol=atol
    )
    assert stats.means()["value/clip_fraction"] == pytest.approx(expected["clip_fraction"])
