"""The scorers of reasoning-gym as a reward."""

from __future__ import annotations

import json
import re
from typing import Any

from rlzoo.errors import UserError
from rlzoo.rewards.base import Reward, Sample

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymReward(Reward):
    """Asks the reasoning-gym task that wrote a question to judge the answer.

    Goes with ``rlzoo.tasks.ReasoningGym``. The text is stripped first, since a trailing space
    costs credit. An answer that the scorer cannot read, as numbers tasks do with words, gets 0.

    Args:
        partial: Pass partial credit on. By default only a full 1 counts, because many tasks
            give credit to any text that contains the answer.
        answer_tag: Judge what the last ``<answer>...</answer>`` holds; 0 without one.
        **kwargs: Options of every reward.
    """

    def __init__(self, partial: bool = False, answer_tag: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.partial = partial
        self.answer_tag = answer_tag
        self._datasets: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_datasets": {}}

    def prepare(self) -> None:
        """Import reasoning-gym."""
        _reasoning_gym()

    def reward(self, sample: Sample) -> float:
        """Judge the completion.

        Args:
            sample: An answer to a question of ``rlzoo.tasks.ReasoningGym``.

        Returns:
            A reward from 0 to 1.

        Raises:
            UserError: If the question comes from another task.
        """
        try:
            name, config = sample.columns["dataset"], sample.columns["config"]
            entry = sample.columns["entry"]
        except KeyError as error:
            raise UserError(
                f"reward '{self.name}' needs column {error}, which only the ReasoningGym task "
                "writes; use that task, or another reward"
            ) from None
        text = sample.completion
        if self.answer_tag:
            tagged = _ANSWER.findall(text)
            if not tagged:
                return 0.0
            text = tagged[-1]
        try:
            value = float(self._dataset(name, config).score_answer(text.strip(), entry))
        except UserError:
            raise
        except Exception:
            return 0.0
        return value if self.partial else float(value == 1.0)

    def _dataset(self, name: str, config: dict[str, Any]) -> Any:
        key = json.dumps([name, config], sort_keys=True, default=repr)
        if key not in self._datasets:
            try:
                dataset = _reasoning_gym().create_dataset(name, size=1, seed=0, **config)
            except Exception as error:
                raise UserError(f"reward '{self.name}': dataset '{name}': {error}") from error
            self._datasets[key] = dataset
        return self._datasets[key]


def _reasoning_gym() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise UserError(
            f"ReasoningGymReward needs reasoning-gym ({error}): pip install 'rlzoo-lightning[gym]'"
        ) from error
    return reasoning_gym
