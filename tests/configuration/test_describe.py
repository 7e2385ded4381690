"""Objects turn back into the configuration that would make them again."""

import copy
import pickle
from functools import partial

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser

import rlzoo
from rlzoo.algorithms import Algorithm
from rlzoo.configuration import Undescribable, describe
from rlzoo.models import Policy
from rlzoo.rewards import Reward


def share(completion, target):
    return float(completion == target)


def made_again(kind, value):
    """Build an object from its description, after a round through YAML."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=kind)
    spec = yaml.safe_load(yaml.safe_dump(describe(value)))
    return parser.instantiate(parser.parse_object({"it": spec})).it


def test_an_object_is_its_class_and_what_it_was_given():
    assert describe(rlzoo.GSPO(clip_high=0.1)) == {
        "class_path": "rlzoo.GSPO",
        "init_args": {"clip_high": 0.1},
    }
    assert describe(rlzoo.MaskTruncated()) == {"class_path": "rlzoo.MaskTruncated"}


def test_the_description_makes_an_equal_object():
    again = made_again(Algorithm, rlzoo.GSPO(0.01, clip_high=0.2))
    assert type(again) is rlzoo.GSPO
    assert (again.clip_low, again.clip_high) == (0.01, 0.2)
    policy = rlzoo.DensePolicy(config={"model_type": "qwen3", "hidden_size": 32}, init_seed=7)
    again = made_again(Policy, policy)
    assert (again.source.config, again.init_seed) == (policy.source.config, 7)


def test_keyword_arguments_that_are_handed_on_are_kept():
    given = describe(rlzoo.ExactMatch(weight=0.5, name="right"))["init_args"]
    assert given == {"weight": 0.5, "name": "right"}
    assert made_again(Reward, rlzoo.ExactMatch(weight=0.5, name="right")).name == "right"


def test_settings_functions_and_optimizers():
    assert describe(rlzoo.KLPenalty(0.1))["coefficient"] == 0.1
    assert describe(rlzoo.FunctionReward(share))["init_args"]["function"].endswith(".share")
    assert describe(partial(torch.optim.SGD, lr=0.1)) == {
        "class_path": "torch.optim.SGD",
        "init_args": {"lr": 0.1},
    }


def test_what_no_configuration_can_carry_is_refused():
    for value in (lambda p: torch.optim.SGD(p, 0.1), partial(share, 1), object()):
        with pytest.raises(Undescribable, match="cannot be written into a configuration"):
            describe(value)


def test_a_class_without_a_constructor_takes_no_arguments():
    with pytest.raises(TypeError, match=r"MaskTruncated\(\) takes no arguments"):
        rlzoo.MaskTruncated(3)


def test_copies_remember_too():
    first = rlzoo.GSPO(clip_high=0.1)
    for other in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert describe(other) == describe(first)
