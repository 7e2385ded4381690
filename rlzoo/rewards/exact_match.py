"""Rewards that compare text with the reference answer."""

from __future__ import annotations

from typing import Any

from rlzoo.rewards.base import Reward, Sample


class ExactMatch(Reward):
    """1 if the completion is the reference answer, else 0.

    Args:
        strip: Ignore white space around both.
        require_termination: Give 0 to an answer that was cut off before its EOS.
        **kwargs: Options of every reward.
    """

    def __init__(self, strip: bool = True, require_termination: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strip = strip
        self.require_termination = require_termination

    def reward(self, sample: Sample) -> float:
        """Compare the completion with the reference answer."""
        if self.require_termination and not sample.terminated:
            return 0.0
        completion, target = sample.completion, sample.target
        if self.strip:
            completion, target = completion.strip(), target.strip()
        return float(completion == target)


class FirstLineMatch(Reward):
    """1 if the first line of the completion is the reference answer and has an end, else 0.

    For few-shot prompts to a raw language model, which goes on with another line of its own. White
    space around both is ignored. The line ends at a newline, or at EOS; one that was cut off counts
    0, since it might have gone on.
    """

    def reward(self, sample: Sample) -> float:
        """Compare the first line of the completion with the reference answer."""
        line, newline, _ = sample.completion.partition("\n")
        if not newline and not sample.terminated:
            return 0.0
        return float(line.strip() == sample.target.strip())
