"""Small groups of settings; each refuses what it cannot honour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlzoo.errors import UserError


@dataclass(frozen=True)
class Schedule:
    """Learning rate over updates: linear warm-up, then decay.

    Args:
        warmup_updates: Optimizer steps over which the rate rises from 0 to its full value.
        decay: ``constant``, or ``linear`` or ``cosine`` down to ``final_share`` at the last update.
        final_share: Share of the full rate that is left at the end; not used by ``constant``.
    """

    warmup_updates: int = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    final_share: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup_updates < 0:
            raise UserError(f"schedule.warmup_updates must be >= 0, got {self.warmup_updates}")
        if not 0 <= self.final_share <= 1:
            raise UserError(f"schedule.final_share must be in [0, 1], got {self.final_share}")
        if self.final_share and self.decay == "constant":
            raise UserError(
                f"schedule.final_share {self.final_share} has no effect with decay=constant; "
                "choose decay=linear or cosine"
            )

    def factor(self, update: int, total: float) -> float:
        """Return the share of the full rate for one update.

        Args:
            update: Updates done so far.
            total: Updates of the whole run.

        Returns:
            A number in [0, 1].
        """
        if update < self.warmup_updates:
            return (update + 1) / (self.warmup_updates + 1)
        if self.decay == "constant":
            return 1.0
        done = (update - self.warmup_updates) / max(1.0, total - self.warmup_updates)
        done = min(1.0, done)
        left = 1 - done if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.final_share + (1 - self.final_share) * left


@dataclass(frozen=True)
class ValueSettings:
    """How the critic's loss enters.

    Args:
        coefficient: Weight of the value loss beside the policy loss.
        clip: How far a value may move in one iteration before its error stops counting.
    """

    coefficient: float = 1.0
    clip: float = 0.2

    def __post_init__(self) -> None:
        if not self.coefficient > 0:
            raise UserError(f"value.coefficient must be > 0, got {self.coefficient}")
        if not self.clip > 0:
            raise UserError(f"value.clip must be > 0 (use .inf to turn it off), got {self.clip}")


@dataclass(frozen=True)
class Evaluation:
    """How held-out prompts are answered and judged.

    Args:
        samples: k, answers drawn per prompt for avg@k and pass@k.
        temperature: Temperature of those answers; 0 is greedy.
        accuracy: Name of the reward that decides whether an answer is right (it must be 1); the
            first reward if not given.
        seed: Seed of the answers, the same at every evaluation.
    """

    samples: int = 4
    temperature: float = 1.0
    accuracy: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"evaluation.samples must be >= 1, got {self.samples}")
        if not self.temperature >= 0:
            raise UserError(f"evaluation.temperature must be >= 0, got {self.temperature}")
