"""Splits: which one a prompt belongs to, and which rows of it are used."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, PromptText, Split, require_integer


def in_split(split: Split, prompt: PromptText, eval_share: float) -> bool:
    """Say whether a prompt belongs to a split.

    Decided by a hash of the prompt alone, so that no prompt is in both splits, whatever the seed,
    the process or the other rows.

    Args:
        split: ``train`` or ``eval``.
        prompt: The prompt.
        eval_share: Share of all prompts that is for evaluation.

    Returns:
        True if it does.
    """
    text = prompt if isinstance(prompt, str) else json.dumps([dict(turn) for turn in prompt])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    for_eval = int.from_bytes(digest[:8], "big") < eval_share * 2**64
    return for_eval == (split == "eval")


def require_size(size: int | None, split: Split, task: str) -> int:
    """Return the size of a split of a task that can make any number of examples.

    Args:
        size: What the user asked for.
        split: ``train`` or ``eval``.
        task: The name of the task.

    Returns:
        The size.

    Raises:
        UserError: If there is none.
    """
    if size is None:
        raise UserError(
            f"data.{split}_size=null: {task} makes its examples up and needs a number; "
            f"set data.{split}_size"
        )
    return require_integer(f"data.{split}_size", size, 1)


def take(
    examples: Sequence[Example], size: int | None, split: Split, seed: int, source: str
) -> Sequence[Example]:
    """Return a seeded choice of the examples that there are, in their order.

    Args:
        examples: All of a split.
        size: How many to keep; None for all.
        split: ``train`` or ``eval``.
        seed: Chooses.
        source: Where they come from, for messages.

    Returns:
        The examples.

    Raises:
        UserError: If there are not that many.
    """
    if size is None:
        return examples
    if require_integer(f"data.{split}_size", size, 1) > len(examples):
        raise UserError(
            f"data.{split}_size={size}: {source} has only {len(examples)} rows for the {split} "
            "split; lower it, or set it to null for all"
        )
    rng = random.Random(f"{seed}/{split}")
    return [examples[i] for i in sorted(rng.sample(range(len(examples)), size))]
