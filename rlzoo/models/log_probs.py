"""Log-probabilities of response tokens, without ever holding all the logits.

Only the hidden states that predict a response token meet the LM head, in chunks that are
recomputed in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Logits of one block: 256 tokens at a vocabulary of 49152. A block is passed over several times,
# so it must be small beside memory, and large enough for its product to run at full speed.
CHUNK_FLOATS = 3 * 2**22
Head = Callable[[Tensor], Tensor]


def scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Put (M,) values back in their (n, T) places, 0 elsewhere.

    Args:
        values: (M,) in row-major order of the mask.
        mask: (n, T) bool.

    Returns:
        (n, T) of the values' dtype.
    """
    return values.new_zeros(mask.shape).index_put(mask.nonzero(as_tuple=True), values)


@dataclass(frozen=True)
class LogitTransform:
    """What a family does to its logits after the LM head: ``cap tanh(scale logits / cap)``.

    Attributes:
        scale: Factor.
        cap: Soft cap, or None.
    """

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Apply it.

        Args:
            logits: Of any shape.

        Returns:
            Logits of the same shape.
        """
        logits = logits if self.scale == 1.0 else logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


def logit_transform(config: Any) -> LogitTransform:
    """Read it from a family's config.

    Args:
        config: The model's text config.

    Returns:
        A function of logits.
    """
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier", "logits_scaling"):
        value = getattr(config, name, None)
        if value is None:
            continue
        divides = name == "logits_scaling" and "granite" in config.model_type
        scale *= 1.0 / value if divides else value
    return LogitTransform(scale, getattr(config, "final_logit_softcapping", None))


def token_log_probs(
    hidden: Tensor,
    targets: Tensor,
    head: Head,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk: int = 1024,
) -> tuple[Tensor, Tensor | None]:
    """Give one target per hidden state its log-probability, in fp32.

    ``log softmax(head(hidden) / temperature)[target]``

    With gradients on and more than one chunk, each chunk's logits are recomputed in the backward
    pass, so that at most one (chunk, V) block is alive in either direction.

    Args:
        hidden: (M, H).
        targets: (M,) long.
        head: Maps (m, H) to (m, V) logits.
        temperature: Divides the logits.
        entropy: Whether to return the entropy too.
        chunk: Tokens per block.

    Returns:
        (M,) log-probs and (M,) entropy in nats, or None, both fp32.
    """

    def block(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = head(hidden).float() / temperature
        normalizer = logits.logsumexp(-1)
        log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - normalizer
        if not entropy:
            return log_probs, None
        centered = logits - normalizer[:, None]
        # A banned token (-inf) has p = 0 and adds nothing; 0 * -inf would be NaN.
        return log_probs, -(centered.exp() * centered.clamp_min(-1e4)).sum(-1)

    recompute = torch.is_grad_enabled() and len(targets) > chunk
    log_probs: list[Tensor] = []
    entropies: list[Tensor] = []
    for start in range(0, max(1, len(targets)), chunk):
        part = hidden[start : start + chunk], targets[start : start + chunk]
        one, two = checkpoint(block, *part, use_reentrant=False) if recompute else block(*part)
        log_probs.append(one)
        entropies += [] if two is None else [two]
    return torch.cat(log_probs), torch.cat(entropies) if entropy else None
