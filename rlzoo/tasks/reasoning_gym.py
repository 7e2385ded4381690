"""The procedural tasks of reasoning-gym."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rlzoo.errors import UserError, nearest, one_line
from rlzoo.tasks.base import Example, Split, Task
from rlzoo.tasks.splits import in_split, require_size

EVAL_SHARE = 0.5
TRIES = 1000


class ReasoningGym(Task):
    """Asks questions of one reasoning-gym dataset; judge them with ``ReasoningGymReward``.

    The splits draw with seeds of their own, and a question belongs to one of them by a hash of its
    text, half of all questions each, so that they share none. A few datasets of the library
    (``list_functions``; with another PYTHONHASHSEED also ``isomorphic_strings``,
    ``polynomial_multiplication``, ``ransom_note`` and ``word_ladder``) give other questions in
    another process.

    Args:
        name: Name of the dataset, such as ``chain_sum``.
        config: Its options.
    """

    def __init__(self, name: str, config: dict[str, Any] | None = None) -> None:
        self.name = name
        self.config = dict(config or {})
        for reserved in ("seed", "size"):
            if reserved in self.config:
                raise UserError(
                    f"ReasoningGym.config.{reserved}={self.config[reserved]}: is not an option "
                    "here; set it under data"
                )
        self._create(seed=0, size=1)

    def examples(self, split: Split, size: int | None, seed: int) -> Sequence[Example]:
        """Return questions in the order in which the dataset makes them up; see `Task.examples`.

        Their ``columns`` hold what ``ReasoningGymReward`` needs.
        """
        size = require_size(size, split, f"ReasoningGym '{self.name}'")
        digest = hashlib.sha256(f"{seed}/{split}".encode()).digest()
        dataset = self._create(seed=int.from_bytes(digest[:4], "big") >> 1, size=2 * size + TRIES)
        found: list[Example] = []
        index = since = 0
        while len(found) < size:
            # By index: iterating shares one position between threads.
            entry = dataset[index]
            index, since = index + 1, since + 1
            if in_split(split, entry["question"], EVAL_SHARE):
                found.append(self._example(entry))
                since = 0
            elif since >= TRIES:
                raise UserError(
                    f"ReasoningGym '{self.name}': no new question for the {split} split in "
                    f"{TRIES} tries; there are too few, so change its config"
                )
        return found

    def _example(self, entry: Mapping[str, Any]) -> Example:
        columns = {"dataset": self.name, "config": self.config, "entry": dict(entry)}
        answer = entry["answer"]
        return Example(entry["question"], "" if answer is None else str(answer), columns)

    def _create(self, seed: int, size: int) -> Any:
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise UserError(
                f"ReasoningGym needs reasoning-gym ({error}): pip install 'rlzoo-lightning[gym]'"
            ) from error
        if self.name not in DATASETS:
            raise UserError(
                f"ReasoningGym.name='{self.name}': {nearest(self.name, list(DATASETS))}"
            )
        try:
            return reasoning_gym.create_dataset(self.name, size=size, seed=seed, **self.config)
        except Exception as error:
            text = one_line(error, 200)
            raise UserError(
                f"ReasoningGym.config={self.config} does not suit '{self.name}' "
                f"({type(error).__name__}: {text}); correct it"
            ) from error
