"""The data of one iteration: Prompts -> Rollouts, Rewards -> Experience -> PolicyBatch.

Legend, used in every file: ``P`` prompts of one iteration, ``G`` answers per prompt,
``N = P * G`` answers, ``T`` response tokens (padded), ``S`` prompt and response, ``V`` vocabulary,
``K`` rewards, ``L`` layers that have experts, ``E`` experts of a layer, ``H`` hidden size, ``M``
masked-in tokens. A small ``n``, ``s`` or ``t`` is a part of the large one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rlzoo.types.expert_choices import Routing, RoutingRecord


@dataclass(frozen=True)
class Prompt:
    """One question, tokenized once.

    Example:
        ``Prompt(token_ids=(21, 5, 3, 9, 22), text="S31=", target="13")``

    Attributes:
        token_ids: The ids the model is fed, chat template and BOS included.
        text: What a person reads.
        target: The reference answer that rewards compare with.
        columns: Every other column of the dataset row.
    """

    token_ids: tuple[int, ...]
    text: str
    target: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompts:
    """The P prompts of one iteration that this rank samples.

    Attributes:
        rows: The prompts.
        positions: Place of each prompt in the iteration's whole batch over all ranks. Seeds, groups
            and minibatches are keyed on it, so that the number of ranks changes nothing, and the
            same text twice in a batch is two groups.
    """

    rows: tuple[Prompt, ...]
    positions: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class SamplingParams:
    """How answers are drawn; nothing is ever inherited from a checkpoint's generation_config.

    Args:
        max_new_tokens: Longest answer, in tokens, EOS included.
        temperature: Divides the logits; 0 is greedy and allowed for evaluation only.
        top_p: Keep the smallest set of tokens whose probability reaches this; 1 is off.
        top_k: Keep the k most likely tokens; 0 is off.
    """

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Sequences:
    """Prompt and response side by side, right-padded: what a policy is asked about.

    Example:
        Prompts ``[7]`` and ``[7, 8]`` with responses ``[1, 2]`` and ``[3]`` are
        ``input_ids=[[7, 1, 2], [7, 8, 3]]``, ``prompt_lengths=[1, 2]``,
        ``mask=[[True, True], [True, False]]``.

    Attributes:
        input_ids: (n, S) long.
        prompt_lengths: (n,) long; response token t of row i stands at ``prompt_lengths[i] + t``.
        mask: (n, T) bool, the response tokens whose log-probs are wanted.
        experts: (n, S, L, k) integers, the experts that a mixture of experts must use, or None
            where its routers choose.
    """

    input_ids: Tensor
    prompt_lengths: Tensor
    mask: Tensor
    experts: Tensor | None = None


@dataclass(frozen=True)
class LogProbs:
    """What one forward pass of a policy says about response tokens.

    Attributes:
        log_probs: (n, T) fp32, 0 where the mask is False.
        entropy: (n, T) fp32 entropy of the next-token distribution in nats, or None if not asked.
        hidden: (M, H) final hidden states at the M masked-in positions in row-major order; they
            predict the response tokens, and a critic that shares the trunk reads them.
        routing: What the routers of a mixture of experts did, or None.
    """

    log_probs: Tensor
    entropy: Tensor | None = None
    hidden: Tensor | None = None
    routing: Routing | None = None


class Vocabulary(Protocol):
    """What turns ids into answers: a policy, for one."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""

    @property
    def pad_id(self) -> int:
        """The id that fills the place after an answer's end."""

    @property
    def device(self) -> torch.device:
        """Where rollouts are kept."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids."""


@dataclass(frozen=True)
class Rollouts:
    """N = P * G sampled answers; row ``p * G + g`` answers ``prompts.rows[p]``.

    Attributes:
        prompts: The P prompts.
        params: How the answers were drawn; log-probs are taken at this temperature.
        group_ids: (N,) long, the global position of the row's prompt.
        token_ids: (N, T) long, the sampled ids, never re-tokenized; pad after the end.
        mask: (N, T) bool, True up to and including the first EOS.
        terminated: (N,) bool, False where the answer was cut at ``max_new_tokens``.
        log_probs: (N, T) fp32, the sampler's own log-probs, 0 where masked.
        completions: N decoded answers, special tokens left out.
        routing: (N, S, L, k) integers, the experts that a mixture of experts used for each token,
            prompts included; junk from a row's last token on. None where nobody asked.
        left_out: (N,) bool, answers that a filter keeps out of the loss and of its counts; None
            where there are none.
        skipped: (N,) bool, answers that a filter keeps out of the update's passes, but not out of
            the counts that its loss is divided by; None where there are none.
    """

    prompts: Prompts
    params: SamplingParams
    group_ids: Tensor
    token_ids: Tensor
    mask: Tensor
    terminated: Tensor
    log_probs: Tensor
    completions: tuple[str, ...]
    routing: Tensor | None = None
    left_out: Tensor | None = None
    skipped: Tensor | None = None

    @classmethod
    def of(
        cls,
        prompts: Prompts,
        params: SamplingParams,
        vocabulary: Vocabulary,
        token_ids: Tensor | Sequence[Sequence[int]],
        log_probs: Tensor | Sequence[Sequence[float]],
        *,
        lengths: Tensor | None = None,
        terminated: Tensor | None = None,
        routing: Tensor | None = None,
    ) -> Rollouts:
        """Make rollouts of what a sampler drew; masks, padding and texts are made here, once.

        Args:
            prompts: P prompts.
            params: How the answers were drawn.
            vocabulary: The policy, or what else knows its ids.
            token_ids: N = P * G answers, prompt by prompt: lists of ids, EOS included, or an
                (N, T) tensor whose rows hold anything after their ``lengths``.
            log_probs: The same shape, the log-probability of each sampled id.
            lengths: (N,) ids of each answer; needed with tensors.
            terminated: (N,) bool, whether an answer ended by itself; by default, whether its last
                id is one of the policy's EOS ids.
            routing: See the attribute.

        Returns:
            Rollouts on the vocabulary's device, T = ``params.max_new_tokens``.

        Raises:
            ValueError: If a list has another length than its log-probs, or is longer than T; if
                tensors come without lengths.
            FloatingPointError: If a log-probability is NaN or infinite.
        """
        room, device = params.max_new_tokens, vocabulary.device
        if not isinstance(token_ids, Tensor) and not isinstance(log_probs, Tensor):
            lengths = torch.tensor([len(row) for row in token_ids], dtype=torch.long)
            if lengths.tolist() != [len(row) for row in log_probs] or (lengths > room).any():
                raise ValueError("Rollouts.of: each answer needs as many log-probs as ids, <= T")
            token_ids = _padded(token_ids, room, torch.long)
            log_probs = _padded(log_probs, room, torch.float32)
        if not (isinstance(token_ids, Tensor) and isinstance(log_probs, Tensor)) or lengths is None:
            raise ValueError("Rollouts.of: give lists, or two tensors and the lengths")
        lengths, token_ids = lengths.to(device), token_ids.to(device)
        mask = torch.arange(room, device=device) < lengths[:, None]
        token_ids = token_ids.where(mask, vocabulary.pad_id)
        log_probs = log_probs.to(device).where(mask, 0.0)
        if not bool(torch.isfinite(log_probs).all()):
            raise FloatingPointError("the sampler's log-probs are NaN or infinite")
        pairs = zip(token_ids.tolist(), lengths.tolist(), strict=True)
        rows = [ids[:length] for ids, length in pairs]
        if terminated is None:
            ended = [bool(ids) and ids[-1] in vocabulary.eos_ids for ids in rows]
            terminated = torch.tensor(ended, dtype=torch.bool, device=device)
        positions = torch.tensor(prompts.positions, dtype=torch.long, device=device)
        return cls(
            prompts=prompts,
            params=params,
            group_ids=positions.repeat_interleave(len(mask) // max(1, len(prompts))),
            token_ids=token_ids,
            mask=mask,
            terminated=terminated,
            log_probs=log_probs,
            completions=tuple(vocabulary.decode(ids) for ids in rows),
            routing=routing,
        )

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    @property
    def group_size(self) -> int:
        """G, the number of answers per prompt."""
        return len(self) // max(1, len(self.prompts))

    def prompt(self, row: int) -> Prompt:
        """Return the prompt that a row answers."""
        return self.prompts.rows[row // self.group_size]

    def lengths(self) -> Tensor:
        """Return the (N,) number of response tokens per row, EOS included."""
        return self.mask.sum(-1)

    def leave_out(self, rows: Tensor) -> Rollouts:
        """Keep answers out of the loss and its counts; their rewards still count in their group.

        Args:
            rows: (N,) bool, in addition to those that are left out already.
        """
        return replace(self, left_out=rows if self.left_out is None else self.left_out | rows)

    def skip(self, rows: Tensor) -> Rollouts:
        """Keep answers out of the update's passes, but not out of what its loss is divided by.

        Args:
            rows: (N,) bool, in addition to those that are skipped already.
        """
        return replace(self, skipped=rows if self.skipped is None else self.skipped | rows)

    def training_mask(self, rewards: Rewards) -> Tensor:
        """Return (N, T) bool, the tokens that train: of answers with a reward, not left out."""
        mask = self.mask & rewards.valid[:, None]
        return mask if self.left_out is None else mask & ~self.left_out[:, None]

    def sequences(self, rows: Tensor) -> Sequences:
        """Return the given rows as right-padded prompt + response, cut to their longest.

        Args:
            rows: (n,) long indices.

        Returns:
            Sequences of n rows.
        """
        mask = self.mask[rows]
        width = max(1, int(mask.sum(-1).max())) if len(rows) else 1
        mask, response = mask[:, :width], self.token_ids[rows, :width]
        prompts = [self.prompt(int(row)).token_ids for row in rows.tolist()]
        longest = max((len(prompt) for prompt in prompts), default=0)
        device = self.token_ids.device
        input_ids = torch.zeros(len(prompts), longest + width, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            input_ids[i, : len(prompt)] = torch.tensor(prompt)
        input_ids = input_ids.to(device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        columns = lengths[:, None] + torch.arange(width, device=device)
        input_ids.scatter_(1, columns, torch.where(mask, response, 0))
        used = int((lengths + mask.sum(-1)).max()) if prompts else 0
        return Sequences(input_ids=input_ids[:, :used], prompt_lengths=lengths, mask=mask)


def _padded(rows: Sequence[Sequence[Any]], width: int, dtype: torch.dtype) -> Tensor:
    padded = torch.zeros(len(rows), width, dtype=dtype)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = torch.tensor(row, dtype=dtype)
    return padded


@dataclass(frozen=True)
class Rewards:
    """The reward of every answer, by reward and combined.

    Attributes:
        table: N lists of K rewards, None where one abstained.
        totals: (N,) weighted sums; 0 where not valid.
        valid: (N,) bool, False where all rewards abstained.
        weights: K weights of that sum.
    """

    table: list[list[float | None]]
    totals: Tensor
    valid: Tensor
    weights: tuple[float, ...] = ()

    def components(self) -> Tensor:
        """Return the table as (N, K) float64, NaN where a reward abstained."""
        rows = [[math.nan if x is None else x for x in row] for row in self.table]
        return torch.tensor(rows, dtype=torch.float64, device=self.totals.device)


@dataclass(frozen=True)
class Experience:
    """Rollouts with everything an update needs, all (N, T) unless said otherwise.

    Attributes:
        rollouts: The sampled answers.
        mask: bool, the tokens that train; all False for a row whose rewards abstained.
        advantages: fp32.
        old_log_probs: fp32 under the weights that sampled; 0 in rows whose first update takes them
            from its own pass, which writes them here.
        ref_log_probs: fp32 under the reference policy, or None.
        values: fp32, the critic's before the update, or None.
        returns: fp32 targets of the critic, or None.
        routing: The experts that tokens were sent to before the first update, or None.
    """

    rollouts: Rollouts
    mask: Tensor
    advantages: Tensor
    old_log_probs: Tensor
    ref_log_probs: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    routing: RoutingRecord | None = None

    def sequences(self, rows: Tensor) -> Sequences:
        """Return the given rows as `Rollouts.sequences` does, with the experts to replay.

        Args:
            rows: (n,) long indices.

        Returns:
            Sequences of n rows.
        """
        found, routing = self.rollouts.sequences(rows), self.routing
        if routing is None or not routing.replayed or not routing.has(rows):
            return found
        return replace(found, experts=routing.experts[rows, : found.input_ids.shape[1]])


_HALF = (torch.float16, torch.bfloat16)
_PER_TOKEN = (
    "log_probs",
    "old_log_probs",
    "advantages",
    "rollout_log_probs",
    "ref_log_probs",
    "entropy",
)


@dataclass(frozen=True)
class PolicyBatch:
    """What an objective sees: five-line tensors, no trainer.

    Half precision is upcast to fp32 and masked slots are set to 0 on construction, so no objective
    can read junk: ``where`` comes before arithmetic, once, here.

    Example:
        ``PolicyBatch(log_probs=x, old_log_probs=x.detach(), advantages=a, mask=m)``

    Attributes:
        log_probs: (N, T) with gradient.
        old_log_probs: (N, T) under the weights that the ratio is taken against.
        advantages: (N, T).
        mask: (N, T) bool.
        rollout_log_probs: (N, T) as the sampler reported them, or None.
        ref_log_probs: (N, T) under the reference policy, or None.
        entropy: (N, T) with gradient, or None.
        group_ids: (N,) long, equal for answers to the same prompt, or None.
        token_ids: (N, T) long, or None.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    rollout_log_probs: Tensor | None = None
    ref_log_probs: Tensor | None = None
    entropy: Tensor | None = None
    group_ids: Tensor | None = None
    token_ids: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.log_probs.shape
        object.__setattr__(self, "mask", self.mask.bool())
        for name in _PER_TOKEN:
            value = getattr(self, name)
            if value is None:
                continue
            if value.shape != shape or self.mask.shape != shape:
                raise ValueError(
                    f"PolicyBatch: {name} is {tuple(value.shape)}, mask {tuple(self.mask.shape)}, "
                    f"log_probs {tuple(shape)}; all must be (N, T)"
                )
            value = value.float() if value.dtype in _HALF else value
            object.__setattr__(self, name, torch.where(self.mask, value, value.new_zeros(())))

    def names(self) -> set[str]:
        """Return the names of the fields that are present."""
        return {f.name for f in fields(self) if getattr(self, f.name) is not None}
