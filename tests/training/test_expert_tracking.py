"""Routing Replay and the routers' losses, through the updates of an iteration."""

from dataclasses import replace

import pytest
import torch
from tiny_models import CHARACTERS, MOE

from rlzoo.algorithms.grpo import GRPO
from rlzoo.filters.dynamic_sampling import substitute
from rlzoo.models import MoEPolicy
from rlzoo.rollout import NativeSampler
from rlzoo.training import minibatches
from rlzoo.training.experience import Rewards
from rlzoo.training.expert_tracking import Balance, router_losses
from rlzoo.training.learner import Learner
from rlzoo.training.settings import Settings
from rlzoo.types import Prompt, Prompts, Rollouts, SamplingParams
from rlzoo.types.expert_choices import (
    RouterSettings,
    Routing,
    RoutingRecord,
    differing,
    expert_counts,
)
from rlzoo.types.stats import Stats

GROUPS, SIZE, WIDTH = 4, 2, 6


def rollouts():
    """Eight ragged answers to four ragged prompts, made up."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(2, 20, (n,), generator=generator)  # noqa: E731
    prompts = [Prompt(tuple(draw(3 + p).tolist()), "") for p in range(GROUPS)]
    lengths = torch.tensor([6, 2, 3, 5, 4, 4, 1, 6])
    mask = torch.arange(WIDTH) < lengths[:, None]
    ids = torch.where(mask, draw(8 * WIDTH).view(8, WIDTH), 0)
    return Rollouts(
        prompts=Prompts(tuple(prompts), tuple(range(GROUPS))),
        params=SamplingParams(max_new_tokens=WIDTH),
        group_ids=torch.arange(GROUPS).repeat_interleave(SIZE),
        token_ids=ids,
        mask=mask,
        terminated=torch.ones(8).bool(),
        log_probs=torch.zeros(8, WIDTH),
        completions=("",) * 8,
    )


def rewarded():
    scores = torch.tensor([1.0, 0.0] * GROUPS)
    table = [[float(score)] for score in scores]
    return Rewards(table, scores, torch.ones(8).bool(), (1.0,))


def learner(family="mixtral", *, tokens=10**6, epochs=1, minibatches=2, **settings):
    policy = MoEPolicy(config=MOE[family], characters=CHARACTERS, **settings)
    policy.load()
    return Learner(
        Settings(
            policy=policy,
            rewards=[],
            algorithm=GRPO(),
            aggregation="token-mean",
            epochs=epochs,
            minibatches=minibatches,
            micro_batch_tokens=tokens,
        )
    )


def iterate(learner, lr=0.5, seen=None, answers=None):
    """Run one iteration of SGD; return its metrics and the gradients of each update."""
    stats, gradients = Stats(), []
    experience = learner.experience(answers or rollouts(), rewarded(), 0, stats)
    trained = [p for p in learner.settings.policy.parameters() if p.requires_grad]
    for update, minibatch in enumerate(learner.cut(experience, 0)):
        for micro in minibatch.micro_batches:
            learner.loss(experience, minibatch, micro, stats, on_policy=update == 0).backward()
        gradients.append([None if p.grad is None else p.grad.clone() for p in trained])
        with torch.no_grad():
            for p in trained:
                if p.grad is not None:
                    p.sub_(lr * p.grad)
                p.grad = None
        if seen is not None:
            seen(experience, update)
    return stats.means() | learner.adapt({}, 8), gradients


def close(first, second, **tolerance):
    for a, b in zip(first, second, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_replay_uses_the_old_experts_in_every_update(family, checkpointing):
    """Epochs, minibatches, micro-batches of one or two rows, recomputed layers."""
    settings = {"tokens": 30, "epochs": 2, "gradient_checkpointing": checkpointing}
    free, _ = iterate(learner(family, **settings))
    replayed, _ = iterate(learner(family, replay="old-policy", **settings))
    assert free["moe/volatility"] > 0.01
    assert free["moe/volatility_free"] == free["moe/volatility"]
    assert replayed["moe/volatility"] == 0
    assert replayed["moe/volatility_free"] > 0.01
    layers = len(learner(family).settings.policy.router_sizes.layers)
    named = [name for name in replayed if name.startswith("moe/volatility/layer_")]
    assert len(named) == layers


def test_replay_makes_the_ratio_exactly_one_while_weights_stand_still():
    metrics, _ = iterate(learner(replay="old-policy", epochs=3, minibatches=1), lr=0.0)
    assert metrics["policy/ratio_max"] == 1
    assert metrics["policy/log_ratio_abs_max"] == 0


def test_replay_reaches_the_router_with_a_gradient():
    """The router trains in an update whose experts are not its own."""
    one = learner(replay="old-policy", epochs=2, minibatches=1)
    routers = [
        module.weight
        for module in one.settings.policy.modules()
        if "Router" in type(module).__name__
    ]
    trained = [p for p in one.settings.policy.parameters() if p.requires_grad]
    places = [i for i, p in enumerate(trained) if any(p is router for router in routers)]

    def scramble(experience, update):
        experience.routing.experts.copy_((experience.routing.experts + 1) % 4)

    _, gradients = iterate(one, seen=scramble)
    assert len(places) == 2
    assert all(gradients[1][i].abs().max() > 0 for i in places)


def drawn(policy, max_concurrent=512):
    """Answers that the policy itself gives."""
    params = SamplingParams(max_new_tokens=WIDTH)
    return NativeSampler(max_concurrent).sample(policy, rollouts().prompts, SIZE, params, 0)


@pytest.mark.parametrize("max_concurrent", [3, 512])
@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "qwen3_5_moe"])
def test_moe07_the_sampler_reports_the_experts_of_every_token(family, max_concurrent):
    """Answers join and leave; the trainer, with the same weights, would choose the same."""
    policy = learner(family).settings.policy
    found = drawn(policy, max_concurrent)
    sequences = found.sequences(torch.arange(8))
    chosen = policy.log_probs(sequences).routing.chosen
    lengths = sequences.prompt_lengths + found.lengths() - 1
    real = torch.arange(chosen.shape[1]) < lengths[:, None]
    assert len(set(lengths.tolist())) > 2
    changed = differing(found.routing[:, : chosen.shape[1]], chosen)
    assert int(changed[real].sum()) <= 1  # a tie in the last digit


def test_replay_of_the_rollout_uses_the_samplers_experts_in_every_update():
    """Experts that the sampler never used stand out: all of them moved by one."""
    one = learner(replay="rollout", epochs=2)
    real = drawn(one.settings.policy)
    metrics, _ = iterate(one, answers=real)
    assert metrics["moe/rollout_volatility"] < 0.01
    assert metrics["moe/volatility"] == 0
    assert metrics["moe/volatility_free"] > 0.01
    other = learner(replay="rollout", epochs=2)
    scores = []
    metrics, _ = iterate(
        other,
        lr=0.0,
        answers=replace(real, routing=(real.routing + 1) % 4),
        seen=lambda experience, update: scores.append(experience.old_log_probs.clone()),
    )
    assert metrics["moe/rollout_volatility"] > 0.2
    assert metrics["moe/rollout_changed"] >= metrics["moe/rollout_volatility"]
    assert metrics["moe/volatility"] == 0
    assert metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
    moved = replace(real.sequences(torch.arange(8)), experts=((real.routing + 1) % 4))
    width = moved.input_ids.shape[1]
    moved = replace(moved, experts=moved.experts[:, :width])
    expected = other.settings.policy.log_probs(moved).log_probs
    torch.testing.assert_close(scores[-1][:, : expected.shape[1]], expected, rtol=0, atol=1e-5)


def test_a_group_that_is_sampled_anew_brings_its_experts():
    policy = learner().settings.policy
    old, new = drawn(policy), drawn(policy)
    new = replace(new, routing=torch.ones_like(new.routing)[:2, :-1], **cut(new, 2))
    given = Rewards([[1.0]] * 8, torch.ones(8), torch.ones(8).bool())
    fresh = Rewards([[1.0]] * 2, torch.ones(2), torch.ones(2).bool())
    merged, _ = substitute(old, given, [1], new, fresh)
    assert (merged.routing[2:4, :-1] == 1).all()
    assert torch.equal(merged.routing[[0, 1, 4, 5, 6, 7]], old.routing[[0, 1, 4, 5, 6, 7]])


def cut(found, count):
    """Return the fields of the first answers."""
    names = ("group_ids", "token_ids", "mask", "terminated", "log_probs", "completions")
    prompts = Prompts(found.prompts.rows[: count // SIZE], found.prompts.positions[: count // SIZE])
    return {"prompts": prompts, **{name: getattr(found, name)[:count] for name in names}}


@pytest.mark.parametrize("settings", [{}, {"aux_coefficient": 0.5, "z_coefficient": 0.1}])
def test_recomputed_layers_change_no_gradient(settings):
    settings = dict(replay="old-policy", epochs=2, tokens=30, **settings)
    plain, expected = iterate(learner(**settings))
    again, found = iterate(learner(gradient_checkpointing=True, **settings))
    for a, b in zip(expected, found, strict=True):
        close(a, b, rtol=1e-4, atol=1e-6)
    for name in plain:
        if name.startswith("moe/"):
            assert again[name] == pytest.approx(plain[name], rel=1e-4), name


def test_a_recomputation_belongs_to_its_own_forward():
    """Two forwards, then two backwards: each recomputes under its own experts."""
    one = learner(gradient_checkpointing=True, replay="old-policy").settings.policy
    one.training_mode()
    rows = torch.arange(8)
    sequences = rollouts().sequences(rows)
    chosen = one.log_probs(sequences).routing.chosen
    gradients = {}
    for names in (("free",), ("moved",), ("free", "moved")):
        scores = []
        for name in names:
            experts = chosen if name == "free" else (chosen + 1) % 4
            scores.append(
                (name, one.log_probs(replace(sequences, experts=experts)).log_probs.sum())
            )
        for name, score in scores:
            score.backward()
            found = [p.grad.clone() for p in one.parameters() if p.grad is not None]
            one.zero_grad()
            close(gradients.setdefault(name, found), found)
    assert not torch.allclose(gradients["free"][0], gradients["moved"][0])


def test_the_record_is_written_once_and_is_small():
    kept = []
    one = learner(replay="old-policy", epochs=2, tokens=30)

    def seen(experience, update):
        kept.append((experience.routing.experts.clone(), experience.routing.known.clone()))

    metrics, _ = iterate(one, seen=seen)
    assert kept[-1][1].all()
    assert all(torch.equal(kept[0][0], experts) for experts, _ in kept)
    longest = max(
        len(rollouts().prompt(r).token_ids) + int(rollouts().lengths()[r]) for r in range(8)
    )
    assert metrics["moe/record_bytes"] == 8 * longest * 2 * 2
    assert kept[0][0].dtype == torch.uint8


def test_only_real_tokens_are_compared():
    sizes = learner().settings.policy.router_sizes
    record = RoutingRecord.blank(torch.tensor([3, 5]), sizes, replayed=False)
    assert record.real(torch.arange(2), 5).sum(-1).tolist() == [2, 4]
    record.keep(torch.arange(2), torch.tensor([0, 1], dtype=torch.uint8).expand(2, 4, 2, 2))
    assert record.load(torch.arange(2)).tolist() == [[6, 6, 0, 0], [6, 6, 0, 0]]


def shares(tokens, **settings):
    """Return router gradients of the routers' losses alone: of the loss with minus without."""
    one, none = learner(tokens=tokens, **settings), learner(tokens=tokens)
    metrics, gradients = iterate(one, lr=0.0)
    _, without = iterate(none, lr=0.0)
    differences = [
        [a - b for a, b in zip(x, y, strict=True) if a is not None]
        for x, y in zip(gradients, without, strict=True)
    ]
    return metrics, differences


def test_moe03_the_routers_losses_do_not_depend_on_the_cut():
    settings = {"aux_coefficient": 0.3, "z_coefficient": 0.2}
    whole, expected = shares(10**6, **settings)
    parts, found = shares(1, **settings)
    cut = learner(tokens=1)
    experience = cut.experience(rollouts(), rewarded(), 0, Stats())
    assert all(len(step.micro_batches) == 4 for step in cut.cut(experience, 0))
    for name in ("moe/aux_loss", "moe/z_loss"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-5)
    for a, b in zip(expected, found, strict=True):
        close(a, b, rtol=1e-4, atol=1e-6)
    assert max(float(g.abs().max()) for g in expected[0]) > 1e-3


def test_moe03_the_loss_differs_by_the_weighted_terms():
    def total(**settings):
        one = learner(minibatches=1, **settings)
        stats = Stats()
        experience = one.experience(rollouts(), rewarded(), 0, stats)
        [step] = one.cut(experience, 0)
        [micro] = step.micro_batches
        loss = one.loss(experience, step, micro, stats, on_policy=True)
        return loss.item(), one.adapt({}, 8)

    plain, silent = total()
    loss, metrics = total(aux_coefficient=0.3, z_coefficient=0.2)
    assert not {"moe/aux_loss", "moe/z_loss"} & silent.keys()
    extra = 0.3 * metrics["moe/aux_loss"] + 0.2 * metrics["moe/z_loss"]
    assert loss - plain == pytest.approx(extra, abs=1e-5)
    assert metrics["moe/aux_loss"] >= 1.9  # 2 experts per token, evenly used: 2


def test_a_checkpoint_asks_for_no_loss_of_its_router():
    """MOE-03: a coefficient in the model's config adds nothing."""
    config = dict(MOE["mixtral"], router_aux_loss_coef=0.5, output_router_logits=True)
    policy = MoEPolicy(config=config, characters=CHARACTERS)
    policy.load()
    assert policy.router.aux_coefficient == 0
    assert not policy.causal_lm.config.output_router_logits


def test_a_pass_that_only_keeps_step_adds_nothing():
    one = learner(aux_coefficient=0.3)
    stats = Stats()
    experience = one.experience(rollouts(), rewarded(), 0, stats)
    step = next(iter(one.cut(experience, 0)))
    filler = minibatches.MicroBatch(torch.zeros(1, dtype=torch.long), padding=True)
    loss = one.loss(experience, step, filler, stats, on_policy=True)
    assert loss.item() == 0
    assert "moe/load_max" not in one.adapt({}, 8)


def test_without_statistics_replay_or_losses_nothing_is_watched_and_nothing_else_changes():
    one = learner(statistics=False)
    metrics, gradients = iterate(one)
    assert one.experts is None
    assert not [name for name in metrics if name.startswith("moe/")]
    watched, same = iterate(learner())
    assert metrics == {k: v for k, v in watched.items() if not k.startswith("moe/")}
    for a, b in zip(gradients, same, strict=True):
        close(a, b, rtol=0, atol=0)


def balance_loss(logits, experts, real):
    """Return the loss of one layer from raw logits (M, E) and experts (M, 1)."""
    weights = real.double()
    probabilities = (weights[:, None] * logits.softmax(-1)).sum(0, keepdim=True)
    load = expert_counts(experts[:, None], weights, logits.shape[-1])
    routing = Routing(experts, weights.sum(), probabilities=probabilities)
    settings = RouterSettings(aux_coefficient=1.0)
    return router_losses(routing, Balance(weights.sum(), load), settings)["aux"]


def test_moe01_the_balance_loss_takes_one_softmax():
    logits = torch.tensor([10.0, 0, 0, 0]).double().expand(5, -1)
    loss = balance_loss(logits, torch.zeros(5, 1).long(), torch.ones(5))
    assert float(loss) == pytest.approx(3.99946, abs=1e-5)


def test_moe02_the_balance_loss_leaves_padding_out():
    logits = torch.full((8, 2), -1e9).double()
    experts = torch.tensor([0, 1, 0, 0, 0, 0, 0, 0])[:, None]
    logits.scatter_(1, experts, 0.0)
    real = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0])
    assert float(balance_loss(logits, experts, real)) == pytest.approx(1.0)
    assert float(balance_loss(logits, experts, torch.ones(8))) == pytest.approx(1.5625)
