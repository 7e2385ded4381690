"""Rewards that are negative for long answers."""

from __future__ import annotations

from typing import Any

from rlzoo.errors import UserError
from rlzoo.rewards.base import Reward, Sample, require_number


class LengthPenalty(Reward):
    """Price every token: ``-num_tokens / limit``.

    An answer of ``limit`` tokens gets -1; ``weight`` sets the price.

    Args:
        limit: Tokens that cost 1, for instance the longest answer.
        **kwargs: Options of every reward.
    """

    def __init__(self, limit: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if require_number(f"{self.name}.limit", limit) < 1:
            raise UserError(f"{self.name}.limit={limit}: must be at least 1")
        self.limit = limit

    def reward(self, sample: Sample) -> float:
        """Price the answer."""
        return -sample.num_tokens / self.limit


class OverlongPenalty(Reward):
    """Punish answers softly as they near the longest length.

    ``min(0, max(-1, (max_tokens - buffer - num_tokens) / buffer))``: 0 up to
    ``max_tokens - buffer`` tokens, -1 from ``max_tokens`` on, a straight line between.

    Source: DAPO, arXiv 2503.14476, equation 13.

    Args:
        max_tokens: Length from which on the whole penalty applies.
        buffer: Tokens before ``max_tokens`` over which it grows.
        **kwargs: Options of every reward.
    """

    def __init__(self, max_tokens: int, buffer: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for field, value in (("max_tokens", max_tokens), ("buffer", buffer)):
            if require_number(f"{self.name}.{field}", value) < 1:
                raise UserError(f"{self.name}.{field}={value}: must be at least 1")
        if buffer > max_tokens:
            raise UserError(f"{self.name}.buffer={buffer}: must be at most max_tokens={max_tokens}")
        self.max_tokens = max_tokens
        self.buffer = buffer

    def reward(self, sample: Sample) -> float:
        """Measure the answer."""
        free = self.max_tokens - self.buffer
        if sample.num_tokens <= free:
            return 0.0
        return max(-1.0, (free - sample.num_tokens) / self.buffer)
