"""Refusals that a configuration file seldom meets, each next to what it lets pass.

Those that a user meets at the command line are in tests/cli/test_refusals.py.
"""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_models import CHARACTERS, DENSE, MOE

from rlzoo.algorithms import GRPO, REINFORCE
from rlzoo.errors import UserError
from rlzoo.filters import DynamicSampling, MaskTruncated, SkipSilentGroups
from rlzoo.models import DensePolicy, MoEPolicy
from rlzoo.rewards import ExactMatch
from rlzoo.rollout import NativeSampler
from rlzoo.training.checks import check_settings, check_trainer
from rlzoo.training.cold_start import ColdStart
from rlzoo.training.control import AdaptiveEntropy
from rlzoo.training.settings import Settings
from rlzoo.types import Prompt


class WantsMore(GRPO):
    needs = frozenset({"entropy", "hidden"})


class WantsReference(GRPO):
    needs = frozenset({"ref_log_probs"})


class ByGroup(GRPO):
    unit = "group"


class ByStep(GRPO):
    unit = "minibatch"


class Blind(NativeSampler):
    reports_experts = False


def dense(**options):
    return DensePolicy(config=DENSE["qwen3"], characters=CHARACTERS, **options)


def experts(**options):
    return MoEPolicy(config=MOE["mixtral"], characters=CHARACTERS, **options)


def settings(**fields):
    return Settings(**{"policy": dense(), "rewards": [ExactMatch()], **fields})


@pytest.mark.parametrize(
    ("refused", "taken", "words"),
    [
        (
            {"algorithm": WantsMore()},
            {"algorithm": REINFORCE()},
            "WantsMore.needs names ['hidden']; the base supplies ['entropy', ",
        ),
        (
            {"filters": [MaskTruncated(), DynamicSampling()]},
            {"filters": [DynamicSampling(), MaskTruncated()]},
            "model.filters MaskTruncated, DynamicSampling: DynamicSampling puts answers in the place",
        ),
        (
            {"algorithm": WantsReference()},
            {"algorithm": WantsReference(), "reference": "initial"},
            "WantsReference reads ref_log_probs; set model.reference",
        ),
        (
            {"reference": "adapter_base"},
            {"reference": "adapter_base", "policy": dense(lora={"r": 2})},
            "adapter_base needs a LoRA policy",
        ),
        (
            {"policy": experts(replay="rollout"), "sampler": Blind()},
            {"policy": experts(replay="rollout"), "sampler": NativeSampler()},
            "replay rollout needs the sampler's experts, which Blind does not report",
        ),
        (
            {"policy": experts(replay="old-policy")},
            {"policy": experts(replay="old-policy"), "epochs": 2},
            "old-policy has no effect with one update per iteration",
        ),
        (
            {"filters": [SkipSilentGroups()], "entropy_coefficient": 0.1},
            {"filters": [DynamicSampling()], "entropy_coefficient": 0.1},
            "SkipSilentGroups would take rows from the critic's or the entropy's mean",
        ),
        (
            {"filters": [SkipSilentGroups()], "control": [AdaptiveEntropy()]},
            {"filters": [SkipSilentGroups()]},
            "SkipSilentGroups would take rows from the critic's or the entropy's mean",
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_settings_that_contradict_each_other(refused, taken, words):
    check_settings(settings(**taken))
    with pytest.raises(UserError, match=re.escape(words)):
        check_settings(settings(**refused))


def prompts(count):
    return [Prompt((2, 3), "x")] * count


def trainer(device="cpu", world=1, data=None, **fields):
    strategy = SimpleNamespace(root_device=torch.device(device))
    given = {"precision": "32-true", "precision_plugin": None, "val_check_interval": 1.0, **fields}
    if data != "none":
        source = {
            "prompts_per_iteration": 4,
            "train_prompts": prompts(8),
            "eval_prompts": prompts(8),
            "reserve": None,
            "task": None,
        }
        given["datamodule"] = SimpleNamespace(**source | (data or {}))
    return SimpleNamespace(
        strategy=strategy,
        world_size=world,
        limit_train_batches=1.0,
        check_val_every_n_epoch=1,
        **given,
    )


PLAIN = {"group_size": 4}


@pytest.mark.parametrize(
    ("fields", "refused", "taken", "words"),
    [
        (PLAIN, {"device": "mps"}, {}, "trainer.accelerator mps lacks float64"),
        (
            PLAIN | {"filters": [DynamicSampling()]},
            {"data": "none"},
            {},
            "DynamicSampling needs a source of fresh prompts",
        ),
        (
            PLAIN | {"cold_start": ColdStart()},
            {"data": "none"},
            {},
            "model.cold_start needs a task that gives demonstrations",
        ),
        (
            PLAIN | {"algorithm": ByGroup(), "minibatches": 8},
            {},
            {"data": {"prompts_per_iteration": 8}},
            "minibatches 8 would cut groups, which ByGroup needs whole",
        ),
        (
            PLAIN | {"algorithm": ByStep()},
            {"world": 2},
            {"world": 1},
            "ByStep takes statistics over a whole optimizer step and runs in one process",
        ),
        (PLAIN, {"world": 2, "data": {"eval_prompts": prompts(1)}}, {"world": 2}, "do not cover 2"),
        (PLAIN, {"val_check_interval": 3}, {"val_check_interval": 2}, "more than the 2 iterations"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_trainer_that_does_not_fit(fields, refused, taken, words):
    made = settings(**fields)
    check_trainer(made, trainer(**taken))
    with pytest.raises(UserError, match=re.escape(words)):
        check_trainer(made, trainer(**refused))


def test_statistics_of_a_whole_step_are_not_taken_from_some_of_its_rows():
    made = settings(group_size=4, algorithm=ByStep())
    check_trainer(made, trainer())
    with pytest.raises(UserError, match="SkipSilentGroups would take rows from the statistics of"):
        check_trainer(replace(made, filters=[SkipSilentGroups()]), trainer())
