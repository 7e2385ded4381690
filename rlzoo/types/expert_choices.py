"""The experts that tokens were sent to: in one forward pass, and in an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Replay = Literal["off", "old-policy", "rollout"]


@dataclass(frozen=True)
class RouterSettings:
    """How the routers of a mixture of experts are watched and trained.

    Attributes:
        replay: Whose experts a training forward is made to use.
        aux_coefficient: Weight of the load-balancing loss.
        z_coefficient: Weight of the router z-loss.
        statistics: Whether to measure load, entropy and volatility.
    """

    replay: Replay = "off"
    aux_coefficient: float = 0.0
    z_coefficient: float = 0.0
    statistics: bool = True

    def coefficient(self, name: str) -> float:
        """Return the weight of ``aux`` or ``z``."""
        return self.aux_coefficient if name == "aux" else self.z_coefficient

    @property
    def in_loss(self) -> bool:
        """Whether the loss has a router's term."""
        return self.aux_coefficient > 0 or self.z_coefficient > 0

    @property
    def traced(self) -> bool:
        """Whether the sampler is to report its experts."""
        return self.statistics or self.replay == "rollout"

    @property
    def watched(self) -> bool:
        """Whether routers have to be watched at all."""
        return self.statistics or self.in_loss or self.replay != "off"


@dataclass(frozen=True)
class RouterSizes:
    """What there is to route to.

    Attributes:
        layers: Indices of the L decoder layers that have experts.
        experts: E, experts of a layer.
        top_k: k, experts per token.
    """

    layers: tuple[int, ...]
    experts: int
    top_k: int

    @property
    def dtype(self) -> torch.dtype:
        """The smallest integer type that holds an expert's index."""
        return torch.uint8 if self.experts <= 256 else torch.int16


@dataclass(frozen=True)
class Routing:
    """What the routers did in one forward pass; sums are over its real tokens.

    A token counts once for every sequence it belongs to, also where sequences share it, and the
    last token of a sequence, which predicts nothing, never counts.

    Attributes:
        chosen: (n, S, L, k), the experts that the routers themselves prefer; 0 where nothing is
            fed.
        tokens: 0-d float64, real tokens.
        used: (n, S, L, k), the experts that were used where these were given, or None.
        load: (L, E) float64, tokens sent to each expert, or None where nothing is measured.
        entropy: (L,) float64, sums of the entropy of a token's router distribution, or None.
        probabilities: (L, E) sums of that distribution, with gradient, or None if not in the loss.
        log_normalizer: (L,) sums of the squared logsumexp of the router's logits, with gradient,
            or None if not in the loss.
    """

    chosen: Tensor
    tokens: Tensor
    used: Tensor | None = None
    load: Tensor | None = None
    entropy: Tensor | None = None
    probabilities: Tensor | None = None
    log_normalizer: Tensor | None = None


@dataclass(frozen=True)
class RoutingRecord:
    """The experts that each token of an iteration was sent to before the first update.

    Attributes:
        experts: (N, S, L, k), as small as the number of experts allows.
        lengths: (N,) long, tokens of a row that are fed: all but the last.
        known: (N,) bool, rows that are recorded; written in place with `experts`.
        sizes: Layers and experts.
        replayed: Whether training forwards are made to use them.
    """

    experts: Tensor
    lengths: Tensor
    known: Tensor
    sizes: RouterSizes
    replayed: bool

    @staticmethod
    def blank(lengths: Tensor, sizes: RouterSizes, *, replayed: bool) -> RoutingRecord:
        """Return a record without rows that are known.

        Args:
            lengths: (N,) long, prompt and response tokens of each row.
            sizes: Layers and experts.
            replayed: See the attribute.

        Returns:
            A record of N rows.
        """
        width = int(lengths.max()) if len(lengths) else 0
        shape = (len(lengths), width, len(sizes.layers), sizes.top_k)
        experts = torch.zeros(shape, dtype=sizes.dtype, device=lengths.device)
        known = torch.zeros_like(lengths, dtype=torch.bool)
        return RoutingRecord(experts, lengths - 1, known, sizes, replayed)

    def keep(self, rows: Tensor, chosen: Tensor) -> None:
        """Keep what was chosen for some rows, unless they are recorded already.

        Args:
            rows: (n,) long.
            chosen: (n, s, L, k).
        """
        if not self.has(rows):
            self.experts[rows, : chosen.shape[1]] = chosen
            self.known[rows] = True

    def has(self, rows: Tensor) -> bool:
        """Say whether all of these rows are recorded."""
        return bool(self.known[rows].all())

    def real(self, rows: Tensor, width: int) -> Tensor:
        """Return (n, width) bool, True where a row's token is fed and predicts something."""
        return torch.arange(width, device=rows.device) < self.lengths[rows, None]

    def load(self, rows: Tensor) -> Tensor:
        """Count tokens per expert.

        Args:
            rows: (n,) long, recorded rows.

        Returns:
            (L, E) float64; a layer's sum is k times the number of tokens.
        """
        real = self.real(rows, self.experts.shape[1])
        return expert_counts(self.experts[rows].flatten(0, 1), real.flatten(), self.sizes.experts)


def expert_counts(experts: Tensor, weights: Tensor, count: int) -> Tensor:
    """Add up the weights of the tokens that each expert of each layer gets.

    Args:
        experts: (tokens, L, k) integers.
        weights: (tokens,), 0 for tokens that do not count.
        count: E.

    Returns:
        (L, E) float64.
    """
    _, layers, k = experts.shape
    place = experts.long() + count * torch.arange(layers, device=experts.device)[:, None]
    each = weights.double()[:, None].expand(-1, layers * k)
    return torch.bincount(place.flatten(), each.reshape(-1), layers * count).view(layers, count)


def differing(first: Tensor, second: Tensor) -> Tensor:
    """Count the experts of one choice that are not in the other, as sets.

    Args:
        first: (..., k) distinct integers.
        second: (..., k) distinct integers.

    Returns:
        (...) long, between 0 and k.
    """
    k = first.shape[-1]
    found = [(first == second[..., j : j + 1]).any(-1) for j in range(k)]
    return k - torch.stack(found).sum(0)
