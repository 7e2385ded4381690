"""Rewards for the form of an answer, whatever it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlzoo.errors import UserError
from rlzoo.rewards.base import Reward, Sample


class RegexFormat(Reward):
    """1 if the whole completion matches a regular expression, else 0.

    Args:
        pattern: A Python regular expression; start it with ``(?s)`` to let ``.`` match newlines.
        **kwargs: Options of every reward.
    """

    def __init__(self, pattern: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise UserError(
                f"{self.name}.pattern='{pattern}': not a regular expression ({error}); "
                "escape special characters with a backslash"
            ) from error

    def reward(self, sample: Sample) -> float:
        """Match the completion."""
        return float(self.pattern.fullmatch(sample.completion) is not None)


class TagFormat(Reward):
    """1 if each tag is opened once and closed once, one after the other, else 0.

    Args:
        tags: Names in the order in which they must come: ``[think, answer]`` asks for
            ``<think>...</think>...<answer>...</answer>``; text around them is allowed.
        **kwargs: Options of every reward.
    """

    def __init__(self, tags: Sequence[str] = ("think", "answer"), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tags = list(tags)
        valid = all(re.fullmatch(r"[\w-]+", tag) for tag in self.tags)
        if not self.tags or not valid or len(set(self.tags)) < len(self.tags):
            raise UserError(
                f"{self.name}.tags={self.tags}: name one or more distinct tags, without <>"
            )

    def reward(self, sample: Sample) -> float:
        """Look for the tags."""
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        once = all(sample.completion.count(mark) == 1 for mark in marks)
        places = [sample.completion.find(mark) for mark in marks]
        return float(once and places == sorted(places))
