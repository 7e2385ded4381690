"""Rewards and tasks can be named in a configuration file."""

import pytest
import reward_samples as zoo

from rlzoo.rewards import FirstLineMatch, FunctionReward, MathAnswer, Reward
from rlzoo.tasks import ChainSum, Task

jsonargparse = pytest.importorskip("jsonargparse")

YAML = """
rewards:
  - class_path: rlzoo.rewards.FunctionReward
    init_args: {function: reward_samples.closeness, weight: 0.5, name: near}
  - class_path: rlzoo.rewards.MathAnswer
    init_args: {on_error: abstain}
  - class_path: rlzoo.rewards.FirstLineMatch
    init_args: {timeout: 2}
task: {class_path: rlzoo.tasks.ChainSum, init_args: {few_shot: 3}}
"""


def parser():
    made = jsonargparse.ArgumentParser(exit_on_error=False)
    made.add_argument("--rewards", type=list[Reward])
    made.add_argument("--task", type=Task)
    return made


def test_classes_and_inherited_options_are_found():
    made = parser()
    config = made.instantiate_classes(made.parse_string(YAML))
    near, math, line = config.rewards
    assert isinstance(near, FunctionReward)
    assert (near.function, near.weight, near.name) == (zoo.closeness, 0.5, "near")
    assert isinstance(math, MathAnswer)
    assert (math.timeout, math.on_error) == (5.0, "abstain")
    assert isinstance(line, FirstLineMatch)
    assert line.timeout == 2
    assert isinstance(config.task, ChainSum)
    assert config.task.few_shot == 3


def test_the_configuration_survives_a_round_trip():
    made = parser()
    config = made.parse_string(YAML)
    again = made.parse_string(made.dump(config))
    assert made.instantiate_classes(again).rewards[0].function is zoo.closeness


def test_a_misspelt_option_is_refused():
    with pytest.raises(jsonargparse.ArgumentError, match="wieght"):
        parser().parse_string(YAML.replace("weight", "wieght"))


@pytest.mark.parametrize("name", ["FunctionReward", "MathAnswer", "TagFormat"])
def test_help_shows_the_options_of_every_reward(capsys, name):
    with pytest.raises(SystemExit):
        parser().parse_args([f"--rewards.help=rlzoo.rewards.{name}"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Factor in the sum of all rewards" in shown
    assert "Seconds one row may take" in shown
