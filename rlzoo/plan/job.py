"""A job: what a configuration asks for, in the numbers that memory and speed depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rlzoo.errors import UserError
from rlzoo.models.critic import SeparateCritic
from rlzoo.plan.anatomy import Anatomy, measure
from rlzoo.plan.sharding import Sharding, sharding_of
from rlzoo.rollout.base import Sampler
from rlzoo.rollout.native import NativeSampler
from rlzoo.training.checkpoint import build
from rlzoo.training.checks import check_fsdp2_dtype
from rlzoo.training.module import RLModule
from rlzoo.training.settings import Settings

STATES = {"AdamW": 2, "Adam": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "SGD": 0}
"""Numbers per parameter that an optimizer keeps; momentum adds one to SGD's."""


@dataclass(frozen=True)
class Precision:
    """Bytes per number.

    Attributes:
        weight: Of a weight as the model holds it.
        gradient: Of its gradient.
        state: Of all that the optimizer keeps for a parameter, what makes it fp32 included.
        compute: Of an activation.
        copies: Of the copy of a weight that autocast makes for a forward pass; 0 without.
    """

    weight: int
    gradient: int
    state: int
    compute: int
    copies: int


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        anatomy: The model.
        sharding: How it is sharded.
        precision: Bytes per number.
        given: trainer.precision, model.policy.dtype and the optimizer's numbers per parameter.
        optimizer: Name of its class.
        checkpointing: Whether activations are recomputed in the backward pass.
        critic: Parameters of a separate critic: all of them, and those of routed experts.
        reference: Whether a frozen copy of the model is kept.
        prompts: P, over all processes.
        group_size: G.
        answer_tokens: Longest answer.
        prompt_tokens: Assumed length of a prompt.
        micro_batch_tokens: Most tokens in a forward and backward pass.
        concurrent: Answers that one process decodes at once.
        epochs: Passes over the answers.
        passes_before: Forward passes over the answers that train nothing: old, reference.
        updates: Optimizer steps per iteration.
    """

    anatomy: Anatomy
    sharding: Sharding
    precision: Precision
    given: tuple[str, str, int]
    optimizer: str
    checkpointing: bool
    critic: tuple[int, int]
    reference: bool
    prompts: int
    group_size: int
    answer_tokens: int
    prompt_tokens: int
    micro_batch_tokens: int
    concurrent: int
    epochs: int
    passes_before: int
    updates: int

    def under(self, sharding: Sharding) -> Job:
        """Return the same run under another strategy."""
        return replace(self, sharding=sharding, precision=precision_of(*self.given, sharding.kind))


def job_of(settings: dict[str, Any], prompt_tokens: int) -> Job:
    """Read a run's settings.

    Args:
        settings: All that ``rlzoo fit`` would run with.
        prompt_tokens: Assumed length of a prompt.

    Returns:
        The run in numbers.

    Raises:
        UserError: If the run would be refused, or depends on what only a machine can tell.
    """
    if prompt_tokens < 1:
        raise UserError(f"--prompt_tokens must be >= 1, got {prompt_tokens}")
    chosen: Settings = build({"model": RLModule}, settings).model.settings
    policy = chosen.policy
    anatomy = measure(policy)
    sharding = sharding_of(settings["trainer"], anatomy.experts)
    if sharding.kind == "fsdp2":
        check_fsdp2_dtype(policy.dtype)
    prompts = int(settings["data"]["prompts_per_iteration"])
    if prompts % sharding.world:
        raise UserError(
            f"data.prompts_per_iteration {prompts} does not divide over {sharding.world} processes"
        )
    name, states = _optimizer(settings["model"]["optimizer"])
    given = str(settings["trainer"].get("precision") or "32-true"), str(policy.dtype), states
    separate = isinstance(chosen.critic, SeparateCritic)
    answers = prompts * chosen.group_size // sharding.world
    frozen_copy = chosen.reference not in ("none", "adapter_base")
    return Job(
        anatomy=anatomy,
        sharding=sharding,
        precision=precision_of(*given, sharding.kind),
        given=given,
        optimizer=name,
        checkpointing=policy.gradient_checkpointing,
        critic=(anatomy.trunk, anatomy.routed) if separate else (0, 0),
        reference=frozen_copy,
        prompts=prompts,
        group_size=chosen.group_size,
        answer_tokens=chosen.sampling.max_new_tokens,
        prompt_tokens=prompt_tokens,
        micro_batch_tokens=chosen.micro_batch_tokens,
        concurrent=_at_once(chosen.sampler, answers),
        epochs=chosen.epochs,
        passes_before=int(chosen.updates_per_iteration > 1) + int(chosen.reference != "none"),
        updates=chosen.updates_per_iteration,
    )


def precision_of(precision: str, dtype: str, states: int, kind: str) -> Precision:
    """Return the bytes per number of a run.

    DeepSpeed keeps an fp32 copy of the weights beside whatever it trains (12 bytes per parameter
    with AdamW: ZeRO, section 3.1). In one process and under DDP, rlzoo's optimizer of bfloat16
    weights keeps the other 16 bits, and fp32 gradients. Lightning's bf16-mixed trains fp32 weights
    and copies them for each pass; FSDP2 refuses bfloat16 weights, and bf16-mixed takes their place.

    Args:
        precision: ``trainer.precision``.
        dtype: ``model.policy.dtype``.
        states: Numbers per parameter that the optimizer keeps.
        kind: Of the sharding.

    Returns:
        Bytes.
    """
    half = precision.startswith("bf16") or dtype == "bfloat16"
    if kind == "deepspeed":
        weight = 2 if half else 4
        return Precision(weight, weight, 4 + 4 * states, weight, 0)
    if kind != "fsdp2" and (precision == "bf16-true" or dtype == "bfloat16"):
        if kind == "ddp":  # reduces the model's own gradients, then copies them for the step
            return Precision(2, 2, 6 + 4 * states, 2, 0)
        return Precision(2, 4, 2 + 4 * states, 2, 0)
    return Precision(4, 4, 4 * states, 2 if half else 4, 2 if half else 0)


def _optimizer(spec: Any) -> tuple[str, int]:
    path = spec if isinstance(spec, str) else spec["class_path"]
    options = {} if isinstance(spec, str) else spec.get("init_args") or {}
    name = path.rpartition(".")[2]
    if name not in STATES:
        known = ", ".join(STATES)
        raise UserError(f"model.optimizer {name}: a plan knows the state of {known}; use one")
    return name, STATES[name] + int(name == "SGD" and bool(options.get("momentum")))


def _at_once(sampler: Sampler, answers: int) -> int:
    return min(answers, sampler.max_concurrent) if isinstance(sampler, NativeSampler) else answers
