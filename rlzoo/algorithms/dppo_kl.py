"""DPPO with a KL trust region."""

from __future__ import annotations

from torch import Tensor

from rlzoo.algorithms.dppo_tv import DPPOTV


class DPPOKL(DPPOTV):
    """Divergence PPO, binary KL: ``DPPOTV`` with another measure of how far a token moved.

    ``KL = q log(q / p) + (1 - q) log((1 - q) / (1 - p))``, ``p = exp(log_probs)``,
    ``q = exp(old_log_probs)``; the sampled token against all others.

    Source: arXiv 2602.04879. Against total variation: stricter where p or q is near 0 or 1.

    Args:
        divergence_low: Bound on the divergence where a negative advantage lowered p.
        divergence_high: Bound on the divergence where a positive advantage raised p.
        ratio_cap: Largest weight a token may have; absolute.
    """

    def __init__(
        self,
        divergence_low: float = 0.05,
        divergence_high: float = 0.05,
        ratio_cap: float = 20.0,
    ) -> None:
        super().__init__(divergence_low, divergence_high, ratio_cap)

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the binary KL of q and p, (N, T); probabilities are kept off 0 and 1."""
        p, q = p.clamp(1e-12, 1 - 1e-12), q.clamp(1e-12, 1 - 1e-12)
        return q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
