"""Bounds on tokens per second: what the hardware's figures allow and no software can exceed."""

from __future__ import annotations

from dataclasses import dataclass

from rlzoo.plan.hardware import Hardware
from rlzoo.plan.job import Job


@dataclass(frozen=True)
class Bound:
    """The shortest time that a piece of work can take on one device.

    Attributes:
        name: What it is.
        tokens: Tokens of one device in that time.
        compute: Seconds of arithmetic.
        memory: Seconds of reading its memory.
        network: Seconds of traffic between devices, all of it hidden behind the rest at best.
    """

    name: str
    tokens: float
    compute: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """The longest of the three, which may overlap."""
        return max(self.compute, self.memory, self.network)

    @property
    def rate(self) -> float:
        """Tokens per second of one device."""
        return self.tokens / self.seconds

    @property
    def limit(self) -> str:
        """Which of the three it is."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


def decoding(job: Job, device: Hardware) -> Bound:
    """Bound one step of the rollout: a token for each answer that is being written.

    Arithmetic per token: 2 operations for each parameter it is multiplied by, and 4 L s q for
    attention over s earlier tokens, q the width of the queries. Memory: every weight that some
    token meets is read once, and each answer's keys and values. With b answers, E experts and x
    chosen, E (1 - (1 - x/E)^b) experts are met if routers choose evenly. Network: weights that are
    partitioned are gathered for every step, and sharded experts get their tokens by all-to-all.

    Args:
        job: The run.
        device: Its hardware, complete.

    Returns:
        The bound for one device.
    """
    a, s, p, batch = job.anatomy, job.sharding, job.precision, job.concurrent
    context = job.prompt_tokens + job.answer_tokens / 2
    arithmetic = batch * (2 * a.multiplied + 4 * a.layers * context * a.query_width)
    met = 0.0
    if a.experts:
        seen = 1 - (1 - a.chosen / a.experts) ** (batch * s.ep_size)
        met = seen * a.routed / s.ep_size
    width = min(p.weight, p.compute)
    dense = a.total - a.routed - (0 if a.tied else a.embedding)
    cache = batch * context * p.compute * a.layers * a.key_width
    by_step = s.stage == 3 and not (s.kind == "fsdp2" and s.gather_for_rollout)
    traffic = gathered(job) / _link(job, device) if by_step else 0.0
    return Bound(
        "decoding",
        batch,
        arithmetic / _flops(device),
        (width * (dense + met) + cache) / _bandwidth(device),
        traffic + all_to_all(job, batch) / _link(job, device, s.ep_size),
    )


def training(job: Job, device: Hardware) -> Bound:
    """Bound one pass over an iteration's tokens, forward and backward, with its updates.

    Arithmetic per token and pass, in operations for each parameter it is multiplied by: 2 forward,
    2 for gradients of activations, 2 for gradients of weights that train, 2 more with
    checkpointing, and 2 for each forward pass that trains nothing (old and reference log-probs);
    2 L s q per causal attention forward over s tokens, twice that backward; a separate critic adds
    its share. Network: gradients are reduced once per update, by a ring's all-reduce under DDP and
    ZeRO 1 and 2, which sends all gradients twice, times (world - 1) / world; ZeRO 3 and FSDP2
    gather the weights twice and reduce gradients once in every micro-batch.

    Args:
        job: The run.
        device: Its hardware, complete.

    Returns:
        The bound for one device and one iteration.
    """
    a, s, p = job.anatomy, job.sharding, job.precision
    length = job.prompt_tokens + job.answer_tokens
    rows = job.prompts * job.group_size // s.world
    tokens = float(rows * length)
    passes = job.epochs * (2 + job.checkpointing) + job.passes_before
    attention = 2 * a.layers * length * a.query_width
    learned = 2 * a.multiplied * a.trainable / a.total
    work = passes * (2 * a.multiplied + attention) + job.epochs * (learned + attention)
    work *= 1 + job.critic[0] / a.total
    micro = -(-tokens // job.micro_batch_tokens) * job.epochs
    if s.stage == 3:
        traffic = (3 * micro + job.passes_before * micro / job.epochs) * gathered(job)
    else:
        reduced = s.share(a.trainable - a.trainable_routed, a.trainable_routed, 4)
        traffic = 2 * job.updates * p.gradient * reduced * (s.world - 1) / s.world
    routed = (passes + job.epochs) * all_to_all(job, tokens) / _link(job, device, s.ep_size)
    weights = micro * 3 * p.compute * a.total / s.ep_size
    return Bound(
        "training",
        tokens,
        tokens * work / _flops(device),
        weights / _bandwidth(device),
        traffic / _link(job, device) + routed,
    )


def gathered(job: Job) -> float:
    """Return the bytes that a device receives when all partitioned weights are gathered once."""
    a, s, p = job.anatomy, job.sharding, job.precision
    replicas = s.world // s.ep_size
    routed = a.routed / s.ep_size * (replicas - 1) / replicas
    return p.weight * ((a.total - a.routed) * (s.world - 1) / s.world + routed)


def all_to_all(job: Job, tokens: float) -> float:
    """Return the bytes that a device sends to experts elsewhere and gets back, in a forward pass.

    2 x h c per token and layer, for x chosen experts, width h and c bytes per activation, of which
    (ep_size - 1) / ep_size leave the device.
    """
    a, s, p = job.anatomy, job.sharding, job.precision
    away = (s.ep_size - 1) / s.ep_size
    return 2.0 * tokens * a.moe_layers * a.chosen * a.hidden * p.compute * away


def bounds(job: Job, device: Hardware) -> list[Bound]:
    """Return both bounds, or none where a figure is missing.

    Args:
        job: The run.
        device: Its hardware.

    Returns:
        Decoding and training, for one device each.
    """
    link = 1.0 if job.sharding.world == 1 else device.link(job.sharding.nodes)
    if None in (device.tflops, device.bandwidth_gb_s, link):
        return []
    return [decoding(job, device), training(job, device)]


def _flops(device: Hardware) -> float:
    assert device.tflops is not None
    return device.tflops * 1e12


def _bandwidth(device: Hardware) -> float:
    assert device.bandwidth_gb_s is not None
    return device.bandwidth_gb_s * 1e9


def _link(job: Job, device: Hardware, reach: int = 0) -> float:
    """Return bytes per second of the slowest link among neighboring processes, 0 for all."""
    world, nodes = job.sharding.world, job.sharding.nodes
    if world == 1:
        return 1e9  # nothing travels
    link = device.link(1 if 0 < reach <= world // nodes else nodes)
    assert link is not None
    return link * 1e9
