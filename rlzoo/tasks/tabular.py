"""Tasks whose rows exist already, in a file or a dataset."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from rlzoo.errors import UserError
from rlzoo.tasks.base import PRINTABLE, Example, Split, Task
from rlzoo.tasks.splits import in_split, take


class TabularTask(Task):
    """Splits and selects rows; override ``load``.

    Args:
        eval_fraction: Share of the prompts held out for evaluation where evaluation has no rows
            of its own; chosen by a hash of the prompt.
        has_eval: Whether evaluation has rows of its own.
    """

    def __init__(self, eval_fraction: float, has_eval: bool) -> None:
        if not 0 <= eval_fraction < 1:
            raise UserError(
                f"{type(self).__name__}.eval_fraction={eval_fraction}: must be from 0 to below 1"
            )
        self.eval_fraction = eval_fraction
        self.has_eval = has_eval
        self._loaded: dict[Split, Sequence[Example]] = {}

    @abstractmethod
    def load(self, split: Split) -> Sequence[Example]:
        """Read and check all rows of a split.

        Args:
            split: ``train``, or ``eval`` if there are such rows.

        Returns:
            The rows.
        """

    @abstractmethod
    def source(self, split: Split) -> str:
        """Name where the rows of a split come from, for messages."""

    def examples(self, split: Split, size: int | None, seed: int) -> Sequence[Example]:
        """Return a seeded choice of the rows, in the order of the source; see `Task.examples`."""
        return take(self._split(split), size, split, seed, self.source(split))

    @property
    def alphabet(self) -> str:
        """Every printable ASCII character, and whatever else the training rows contain."""
        extra: set[str] = set()
        for example in self._rows("train"):
            extra.update(example.target)
            if isinstance(example.prompt, str):
                extra.update(example.prompt)
            else:
                extra.update(*(turn["content"] for turn in example.prompt))
        return PRINTABLE + "".join(sorted(extra - set(PRINTABLE)))

    def _rows(self, split: Split) -> Sequence[Example]:
        if split not in self._loaded:
            rows = self.load(split)
            if not rows:
                raise UserError(f"{self.source(split)}: has no rows; give it at least one")
            self._loaded[split] = rows
        return self._loaded[split]

    def _split(self, split: Split) -> Sequence[Example]:
        if self.has_eval:
            return self._rows(split)
        rows = self._rows("train")
        kept = [row for row in rows if in_split(split, row.prompt, self.eval_fraction)]
        if not kept:
            raise UserError(
                f"{self.source('train')}: eval_fraction={self.eval_fraction} leaves none of its "
                f"{len(rows)} rows for the {split} split; change it, or give evaluation rows"
            )
        return kept
