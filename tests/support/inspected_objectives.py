"""What a user might bring: a reward, and objectives that differ from the zoo in one respect."""

from typing import ClassVar

import torch

from rlzoo.algorithms import GRPO, GSPO, REINFORCE, Algorithm, Surrogate


def length_and_first(completions, **_):
    """A number that differs between most answers."""
    return [len(text) + (ord(text[0]) % 7 if text else 0) / 10 for text in completions]


class Flipped(REINFORCE):
    def clip(self, ratio, batch):
        return Surrogate(-batch.advantages * batch.log_probs, torch.zeros_like(batch.mask))


class TokenMeanGSPO(GSPO):
    aggregation: ClassVar[str] = "token-mean"


class NeedsReference(GRPO):
    needs: ClassVar[frozenset[str]] = frozenset({"ref_log_probs"})


class NeedsSettings(Algorithm):
    def __init__(self, width: float) -> None:
        super().__init__(width, width)


class Constant(Algorithm):
    def clip(self, ratio, batch):
        return Surrogate(batch.advantages.clone(), torch.zeros_like(batch.mask))


class Loud(Algorithm):
    def clip(self, ratio, batch):
        return Surrogate(ratio[:1], torch.zeros_like(batch.mask))
