"""The choice of a decoder: the fused one where it agrees with transformers."""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

import torch
from torch import nn

from rlzoo.models.base import Policy
from rlzoo.models.feeding.trunk import compute_dtype
from rlzoo.rollout.decoding.decoders import Decoder, generic_decoder
from rlzoo.rollout.decoding.fused import FusedDecoder, Unfusable

log = logging.getLogger("rlzoo")

# Largest difference of logits, as a share of the largest logit, that is still rounding.
_SURE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
_trusted: WeakKeyDictionary[nn.Module, dict[torch.dtype, bool]] = WeakKeyDictionary()


def decoder_for(policy: Policy, rows: int, room: int) -> Decoder:
    """Return the fastest decoder that gives a model's own logits.

    The first time that a model is met, the fused decoder has to reproduce the logits of
    transformers; where it does not, or does not know the model, the reason is logged once.

    Args:
        policy: The model, in `generating`.
        rows: Most answers at a time.
        room: Most tokens per answer.

    Returns:
        A decoder without answers.
    """
    if policy.lockstep:
        return generic_decoder(policy, rows, room)
    known = _trusted.setdefault(policy.causal_lm, {})
    dtype = compute_dtype(policy.device, policy.causal_lm.dtype)
    if known.get(dtype, True):
        reason = ""
        try:
            fused = FusedDecoder(policy, rows, room)
            if dtype not in known:
                reason = _disagreement(policy, _SURE.get(dtype, 5e-2))
        except Unfusable as error:
            reason = str(error)
        known[dtype] = not reason
        if not reason:
            return fused
        log.info("sampler: answers are decoded by transformers, more slowly: %s", reason)
    return generic_decoder(policy, rows, room)


def _disagreement(policy: Policy, tolerance: float) -> str:
    """Read two prompts, decode two steps both ways, and say what differs, if anything does."""
    size = policy.causal_lm.config.get_text_config().vocab_size
    # Steps of a prime take the ids from all over the vocabulary.
    ids = [(i * 7919) % size for i in range(8)]
    found = []
    for decoder in (FusedDecoder(policy, 2, 2), generic_decoder(policy, 2, 2)):
        decoder.prefill([tuple(ids[:3]), tuple(ids[1:6])], torch.arange(2, device=policy.device))
        steps = (ids[:2], ids[2:4])
        tokens = [torch.tensor(step, device=policy.device) for step in steps]
        with decoder.weights():
            found.append(torch.stack([decoder.step(step) for step in tokens]))
    ours, theirs = found
    if not bool(torch.isfinite(theirs).all()):
        return ""  # nothing can be compared, and the sampler will say so
    gap, scale = float((ours - theirs).abs().max()), float(theirs.abs().max())
    if gap <= tolerance * scale:
        return ""
    return f"the logits of the fused decoder differ by {gap:.1e}, of {scale:.1e} at most"
