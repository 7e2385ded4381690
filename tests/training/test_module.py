"""The module outside of a run: its settings, and what it keeps in a checkpoint and takes back."""

import copy
from dataclasses import replace

import pytest
import torch
from tiny_models import build

from rlzoo.errors import UserError
from rlzoo.objective import KLPenalty
from rlzoo.rewards import ExactMatch
from rlzoo.training.control import AdaptiveKL
from rlzoo.training.module import RLModule
from rlzoo.types import SamplingParams


def module(policy=None, **fields):
    return RLModule(policy or build("qwen3"), [ExactMatch()], **fields)


def test_sampling_that_is_replaced_reaches_every_reader_and_is_checked():
    one = module(sampling=SamplingParams(8), seed=3)
    one.sampling = replace(one.sampling, temperature=0.5)
    assert one.settings.sampling == one.learner.settings.sampling == SamplingParams(8, 0.5)
    assert one.settings.seed == 3
    with pytest.raises(UserError, match="temperature 0 must be > 0 for rollouts"):
        one.sampling = replace(one.sampling, temperature=0)


def test_modules_share_no_default_that_could_hold_state():
    one, two = module(), module()
    assert one.settings.algorithm is not two.settings.algorithm
    assert one.settings.sampler is not two.settings.sampler


def saved(one):
    checkpoint = {"state_dict": copy.deepcopy(one.state_dict())}
    one.on_save_checkpoint(checkpoint)
    return checkpoint


def test_counters_control_and_configuration_come_back():
    def make():
        rule = AdaptiveKL(target=0.1, horizon=8)
        return module(kl=KLPenalty(0.1), reference="initial", control=[rule])

    one, two = make(), make()
    one.progress |= {"iterations": 3, "updates": 6, "tokens": 50}
    one.before = {"val/accuracy": 0.25}
    one.carry("seed: 1\n")
    one.learner.adapt({"policy/kl_ref": 9.0}, 8)
    checkpoint = saved(one)
    assert checkpoint["rlzoo"]["config"] == "seed: 1\n"
    two.on_load_checkpoint(checkpoint)
    assert two.progress == one.progress
    assert two.progress is not checkpoint["rlzoo"]["progress"]
    assert two.before == {"val/accuracy": 0.25}
    assert two.learner.kl.coefficient == one.learner.kl.coefficient == pytest.approx(0.12)


def test_weights_that_do_not_train_stay_out_and_come_from_their_own_source():
    def make(seed):
        torch.manual_seed(seed)
        return module(build("qwen3", lora={"r": 2}))

    one, two = make(0), make(1)
    with torch.no_grad():
        for name, p in one.named_parameters():
            if "lora_B" in name:
                p.fill_(0.5)
    checkpoint = saved(one)
    kept = set(checkpoint["state_dict"])
    assert kept
    assert all("lora_" in name for name in kept)
    own = copy.deepcopy(two.state_dict())
    two.on_load_checkpoint(checkpoint)
    two.load_state_dict(checkpoint["state_dict"])  # strictly, as Lightning does
    for name, value in two.state_dict().items():
        source = one.state_dict() if name in kept else own
        assert torch.equal(value, source[name]), name


def test_random_states_of_another_number_of_processes_are_left_alone():
    one, checkpoint = module(), saved(module())
    one.on_load_checkpoint(checkpoint)
    assert one._resumed_rng == checkpoint["rlzoo"]["rng"][0]
    other = module()
    checkpoint["rlzoo"]["rng"] *= 2
    other.on_load_checkpoint(checkpoint)
    assert other._resumed_rng is None


def test_a_checkpoint_of_another_program_is_refused():
    with pytest.raises(UserError, match="the file was not written by rlzoo"):
        module().on_load_checkpoint({"state_dict": {}})
