"""Bytes that one process needs, part by part. docs/scaling.md has the formulas and sources."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlzoo.models.log_probs import CHUNK_FLOATS
from rlzoo.plan.anatomy import Anatomy
from rlzoo.plan.job import Job

LIVE = 1e9
"""Parameters that ZeRO 3 keeps gathered at most: stage3_max_live_parameters of DeepSpeed."""

BUCKET = 2e8
"""Elements of a bucket of gradients: reduce_bucket_size of Lightning's DeepSpeedStrategy."""


@dataclass(frozen=True)
class Part:
    """One line of the table.

    Attributes:
        name: What it is.
        size: Bytes per process.
        how: The arithmetic, in words.
        rollout: Whether it is there while answers are sampled.
        training: Whether it is there in a backward pass.
        host: Whether it is in the host's memory.
    """

    name: str
    size: float
    how: str
    rollout: bool = True
    training: bool = True
    host: bool = False


def activation_bytes(anatomy: Anatomy, compute: int, *, checkpointing: bool) -> float:
    """Return the bytes that autograd keeps per token of a forward pass through the layers.

    Per layer, with c the bytes of an activation, h the hidden width, q and k the widths of the
    queries and of keys and values together, m the MLP's width, e experts of which x are chosen:
    2 (4 + 2c) h for the norms, c (2q + k) for attention and 4 a for its a heads, (4 + c)(q + k/2)
    if queries and keys are normalized, 4cm for a gated MLP, or x c (2h + 4m) + 8e + 24x for routed
    experts. The attention matrix is never kept (fused kernels). With checkpointing, one hidden
    state per layer and all that one layer keeps.

    Args:
        anatomy: The model.
        compute: Bytes of an activation.
        checkpointing: Whether layers are recomputed in the backward pass.

    Returns:
        Bytes per token.
    """
    a, c = anatomy, compute
    shared: float = 2 * (4 + 2 * c) * a.hidden + c * (2 * a.query_width + a.key_width) + 4 * a.heads
    if a.normed_heads:
        shared += (4 + c) * (a.query_width + a.key_width / 2)
    dense = shared + 4 * c * a.mlp
    sparse = shared + a.chosen * c * (2 * a.hidden + 4 * a.expert_mlp)
    sparse += 8 * a.experts + 24 * a.chosen
    last = (4 + c) * a.hidden
    if checkpointing:
        return a.layers * c * a.hidden + max(dense * (a.moe_layers < a.layers), sparse) + last
    return (a.layers - a.moe_layers) * dense + a.moe_layers * sparse + last


def cache_bytes(anatomy: Anatomy, compute: int) -> int:
    """Return the bytes of keys and values per token of the rollout: c * layers * k."""
    return compute * anatomy.layers * anatomy.key_width


def parts(job: Job) -> list[Part]:
    """Return what one process holds.

    Args:
        job: The run.

    Returns:
        The lines of the table, the largest kinds first.
    """
    a, s, p = job.anatomy, job.sharding, job.precision
    dense, routed = a.total - a.routed + job.critic[0] - job.critic[1], a.routed + job.critic[1]
    free = a.trainable_routed + job.critic[1]
    fixed = a.trainable - a.trainable_routed + job.critic[0] - job.critic[1]
    held, trained = s.share(dense, routed, 3), s.share(fixed, free, 2)
    kept = s.share(fixed, free, 1)
    chunk = f"{job.micro_batch_tokens} tokens"
    per_token = activation_bytes(a, p.compute, checkpointing=job.checkpointing)
    length = job.prompt_tokens + job.answer_tokens
    layers = "one hidden state per layer, one layer whole" if job.checkpointing else "all layers"
    lines = [
        Part("weights", p.weight * held, _times(p.weight, held), host=s.offload_weights),
        Part("gradients", p.gradient * trained, _times(p.gradient, trained), rollout=False),
        Part(
            f"optimizer state ({job.optimizer})",
            p.state * kept,
            _times(p.state, kept),
            host=s.offload_optimizer,
        ),
        *transport(job, fixed, free),
    ]
    if job.reference:
        lines.append(Part("reference", p.weight * a.total, f"{_times(p.weight, a.total)}, whole"))
    if p.copies:
        copied = a.largest_block if job.checkpointing else a.total - a.embedding
        lines.append(
            Part("bf16 copies of weights", p.copies * copied, _times(p.copies, copied), False)
        )
    return [
        *lines,
        Part("activations", per_token * job.micro_batch_tokens, f"{chunk}, {layers}", False),
        Part("logits of one chunk", 16.0 * CHUNK_FLOATS, "4 fp32 blocks", False),
        Part(
            "keys and values",
            float(cache_bytes(a, p.compute) * job.concurrent * length),
            f"{job.concurrent} answers x {length} tokens x {cache_bytes(a, p.compute):,} B",
            training=False,
        ),
        Part(
            "logits of the rollout",
            8.0 * job.concurrent * a.vocabulary,
            f"{job.concurrent} answers, 2 fp32 blocks",
            training=False,
        ),
    ]


def transport(job: Job, fixed: int, free: int) -> list[Part]:
    """Return the buffers of collectives.

    Args:
        job: The run.
        fixed: Trainable parameters outside of routed experts.
        free: Trainable parameters of routed experts.

    Returns:
        None, one or two lines.
    """
    a, s, p = job.anatomy, job.sharding, job.precision
    if s.kind == "ddp" and not s.bucket_view:
        count = float(fixed + free)
        return [Part("gradient buckets", p.gradient * count, _times(p.gradient, count))]
    if s.kind == "deepspeed":
        held = s.share(fixed, free, 4)
        size = 2 * p.gradient * min(BUCKET, held)
        lines = [Part("gradient buckets", size, "2 of 0.2 B elements at most", rollout=False)]
        if s.stage == 3 and s.world > 1:
            held = a.total - a.routed + (a.routed / s.ep_size if s.ep_size < s.world else 0)
            live = min(LIVE, held)
            lines.append(Part("gathered weights", p.weight * live, _times(p.weight, live)))
        return lines
    if s.kind == "fsdp2" and s.world > 1:
        ends = a.embedding * (1 if a.tied else 2)
        count = 2.0 * a.largest_block + ends
        how = f"{_times(p.weight, count)}: two layers, embedding, head"
        name = "gathered weights"
        if not s.gather_for_rollout:
            return [Part(name, p.weight * count, how)]
        line = Part("gathered for the rollout", p.weight * a.total, _times(p.weight, a.total))
        return [Part(name, p.weight * count, how, rollout=False), replace(line, training=False)]
    return []


def peaks(lines: list[Part]) -> dict[str, float]:
    """Return the bytes on the device while sampling and training, and those on the host."""
    return {
        "rollout": sum(part.size for part in lines if part.rollout and not part.host),
        "training": sum(part.size for part in lines if part.training and not part.host),
        "host": sum(part.size for part in lines if part.host),
    }


def _times(width: int, count: float) -> str:
    return f"{width} B x {count / 1e9:.4g} B parameters"
