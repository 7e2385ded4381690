"""Prompts for Lightning: sized, rank-aware, and positioned by the count of finished iterations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import lightning as L
import torch

from rlzoo import distributed
from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.tasks.base import Example, Task
from rlzoo.types import Prompt, Prompts

log = logging.getLogger("rlzoo")

HELD_OUT_SEED = 0
"""Held-out prompts are the same for every seed, so that runs can be compared on them."""


class Batches(Protocol):
    """Positions and indices of the prompts of each batch."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yield pairs of a prompt's position in its batch and its index."""


class PromptLoader:
    """Yields batches of prompts.

    It is no ``torch.utils.data.DataLoader``: prompts are in memory and hold no tensors, and
    Lightning would put a distributed sampler of its own into one, where ours is already aware of
    ranks.

    Args:
        prompts: What indices mean.
        batches: Which prompts come together.
    """

    def __init__(self, prompts: Sequence[Prompt], batches: Batches) -> None:
        self.prompts, self.batches = prompts, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Prompts]:
        for pairs in self.batches:
            rows = tuple(self.prompts[index] for _, index in pairs)
            yield Prompts(rows, tuple(position for position, _ in pairs))


class IterationBatches:
    """Batches of prompts as a pure function of seed and iteration, so that a resume goes on.

    Prompts are reshuffled for every pass over them; what does not fill a batch is left out of that
    pass. A rank takes every position p with ``p % world_size == rank``.

    Args:
        size: Number of prompts.
        batch: P, prompts per iteration over all ranks.
        seed: Seed of the order.
        finished: Tells how many iterations are done, asked when an epoch begins.
    """

    def __init__(
        self, size: int, batch: int, seed: int, finished: Callable[[], int] = lambda: 0
    ) -> None:
        self.size, self.batch, self.seed, self.finished = size, batch, seed, finished

    def __len__(self) -> int:
        return self.size // self.batch

    def indices(self, iteration: int) -> list[int]:
        """Return the P prompt indices of an iteration, over all ranks."""
        epoch, slot = divmod(iteration, len(self))
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(self.size, generator=generator)
        return order[slot * self.batch : (slot + 1) * self.batch].tolist()

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rank, world = distributed.rank(), distributed.world_size()
        first = self.finished()
        for iteration in range(first, first + len(self)):
            yield list(enumerate(self.indices(iteration)))[rank::world]


class RankBatches:
    """Held-out prompts in order, each once, in equally many batches on every rank."""

    def __init__(self, size: int, batch: int) -> None:
        rank, world = distributed.rank(), distributed.world_size()
        mine = [(i, i) for i in range(rank, size, world)]
        most = -(-size // world)  # of any rank; one with fewer ends with an empty batch
        self.batches = [mine[i : i + batch] for i in range(0, most, batch)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return iter(self.batches)


class PromptDataModule(Recorded, L.LightningDataModule):
    """Prompts of a task, for training and for held-out evaluation.

    Args:
        task: Where prompts and reference answers come from.
        prompts_per_iteration: P, over all processes.
        train_size: How many training prompts; required by procedural tasks, all of a file if none.
        eval_size: How many held-out prompts.
        eval_batch_size: Held-out prompts answered at a time, per process.
        max_prompt_tokens: Longest prompt, in tokens.
        long_prompts: ``error`` refuses a prompt over the limit, ``drop`` leaves it out and says how
            many; a prompt is never cut.
        chat: Turn plain prompts into a user message, for a model with a chat template.
        system_prompt: System message put before chat prompts.
        seed: Seed of the training prompts and their order; seed_everything by default. Held-out
            prompts are the same for every seed.
    """

    def __init__(
        self,
        task: Task,
        prompts_per_iteration: int = 64,
        train_size: int | None = None,
        eval_size: int | None = 256,
        eval_batch_size: int = 128,
        max_prompt_tokens: int = 1024,
        long_prompts: Literal["error", "drop"] = "error",
        chat: bool = False,
        system_prompt: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name in ("prompts_per_iteration", "eval_batch_size", "max_prompt_tokens"):
            if locals()[name] < 1:
                raise UserError(f"data.{name} must be >= 1, got {locals()[name]}")
        self.task, self.prompts_per_iteration = task, prompts_per_iteration
        self.train_size, self.eval_size, self.eval_batch_size = (
            train_size,
            eval_size,
            eval_batch_size,
        )
        self.max_prompt_tokens, self.long_prompts = max_prompt_tokens, long_prompts
        self.chat, self.system_prompt, self.seed = chat, system_prompt, seed
        self.train_prompts: list[Prompt] = []
        self.eval_prompts: list[Prompt] = []

    def setup(self, stage: str, policy: Policy | None = None) -> None:
        """Read, check and tokenize the prompts; no weights are needed for it.

        Args:
            stage: ``fit`` for training and held-out prompts, anything else for the held-out ones.
            policy: Whose tokenizer is used; that of the trainer's module by default, so that only
                a call without a Trainer has to name it.

        Raises:
            UserError: If there is neither a trainer nor a policy, or the prompts cannot be used.
        """
        if policy is None:
            if self.trainer is None:
                raise UserError("data: without a Trainer, name the policy: setup(stage, policy)")
            module: Any = self.trainer.lightning_module
            policy = module.policy
        if stage == "fit" and not self.train_prompts:
            examples = self.task.examples("train", self.train_size, self.seed)
            self.train_prompts = self.tokenize(examples, "train", policy)
            size, batch = len(self.train_prompts), self.prompts_per_iteration
            if size < batch:
                raise UserError(
                    f"data: {size} training prompts do not fill one iteration of "
                    f"data.prompts_per_iteration {batch}; lower it or add prompts"
                )
            if size % batch:
                log.info("data: %d of %d prompts are left out of each pass", size % batch, size)
        if not self.eval_prompts:
            held_out = self.task.examples("eval", self.eval_size, HELD_OUT_SEED)
            self.eval_prompts = self.tokenize(held_out, "eval", policy)

    def tokenize(self, examples: Sequence[Example], split: str, policy: Policy) -> list[Prompt]:
        """Turn examples into prompts within the length limit.

        Args:
            examples: What the task gave.
            split: For messages.
            policy: Whose tokenizer and chat template turn text into ids.

        Returns:
            The prompts, in order.

        Raises:
            UserError: If one is too long and ``long_prompts`` is error, or none is left.
        """
        prompts, longest, too_long = [], 0, 0
        for example in examples:
            ids = tuple(policy.encode(self.messages(example)))
            if len(ids) > self.max_prompt_tokens:
                too_long, longest = too_long + 1, max(longest, len(ids))
                continue
            prompts.append(Prompt(ids, shown(example.prompt), example.target, example.columns))
        limit = f"data.max_prompt_tokens {self.max_prompt_tokens}"
        if too_long and self.long_prompts == "error":
            raise UserError(
                f"data: {too_long} of {len(examples)} {split} prompts exceed {limit} (longest "
                f"{longest}); raise it, or set data.long_prompts to drop"
            )
        if too_long:
            log.info(
                "data: dropped %d of %d %s prompts over %s", too_long, len(examples), split, limit
            )
        if not prompts:
            raise UserError(
                f"data: no {split} prompts are left of {len(examples)}; check the file and {limit}"
            )
        return prompts

    def messages(self, example: Example) -> str | list[Mapping[str, str]]:
        """Return the prompt as the policy is to encode it: text, or chat messages.

        Raises:
            UserError: If a system prompt is set for a plain prompt.
        """
        prompt = example.prompt
        if isinstance(prompt, str) and not self.chat:
            if self.system_prompt is not None:
                raise UserError(
                    "data.system_prompt has no effect on plain prompts; set data.chat to true"
                )
            return prompt
        turns: list[Mapping[str, str]] = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        )
        if self.system_prompt is not None:
            turns = [{"role": "system", "content": self.system_prompt}, *turns]
        return turns

    def train_dataloader(self) -> PromptLoader:
        """Return the prompts that follow the last finished iteration; the first without a run."""
        module: Any = None if self.trainer is None else self.trainer.lightning_module
        batches = IterationBatches(
            len(self.train_prompts),
            self.prompts_per_iteration,
            self.seed,
            lambda: 0 if module is None else int(module.progress["iterations"]),
        )
        return PromptLoader(self.train_prompts, batches)

    def reserve(self, iteration: int, round_: int, positions: Sequence[int]) -> list[Prompt]:
        """Return fresh training prompts in place of groups that taught nothing.

        Args:
            iteration: Iterations finished so far.
            round_: How often this iteration has refilled, from 1.
            positions: Places in the batch to fill; each has a draw of its own, so that the number
                of processes changes nothing.

        Returns:
            As many prompts.
        """
        size = len(self.train_prompts)
        draws = [
            # A hash of integers is the same in every process and run.
            torch.Generator().manual_seed(hash((self.seed, iteration, round_, p)) % 2**63)
            for p in positions
        ]
        return [self.train_prompts[int(torch.randint(size, (), generator=g))] for g in draws]

    def val_dataloader(self) -> PromptLoader:
        """Return this rank's held-out prompts."""
        batches = RankBatches(len(self.eval_prompts), self.eval_batch_size)
        return PromptLoader(self.eval_prompts, batches)

    def transfer_batch_to_device(
        self, batch: Prompts, device: torch.device, dataloader_idx: int
    ) -> Prompts:
        """Return prompts as they are: they hold no tensors."""
        return batch


def shown(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """Return a prompt as a person reads it."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
