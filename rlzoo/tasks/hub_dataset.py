"""A task read with the datasets library, from the hub or from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlzoo.errors import UserError, nearest, one_line
from rlzoo.tasks.base import Example, Split
from rlzoo.tasks.columns import to_example
from rlzoo.tasks.tabular import TabularTask


class HubDataset(TabularTask):
    """Reads a dataset of the Hugging Face hub, or a folder written by ``save_to_disk``.

    Example:
        ``{class_path: HubDataset, init_args: {path: openai/gsm8k, name: main, prompt: question,
        answer_after: "####"}}``

    Args:
        path: Name on the hub, or a local folder.
        name: Configuration of the dataset, if it has several.
        train_split: Split to train on.
        eval_split: Split to evaluate on; null holds out a share of ``train_split``.
        prompt: Name of the column with text, or with chat messages.
        answer: Name of the column with reference answers.
        answer_after: Keep what follows the last of these marks in an answer.
        eval_fraction: The share held out if ``eval_split`` is null.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        train_split: str = "train",
        eval_split: str | None = "test",
        prompt: str = "prompt",
        answer: str = "answer",
        answer_after: str | None = None,
        eval_fraction: float = 0.1,
    ) -> None:
        super().__init__(eval_fraction, has_eval=eval_split is not None)
        self.path = path
        self.name = name
        self.train_split = train_split
        self.eval_split = eval_split
        self.prompt = prompt
        self.answer = answer
        self.answer_after = answer_after
        self._splits: Any = None

    def source(self, split: Split) -> str:
        """Name the dataset and its split."""
        return f"{self.path}[{self._split_name(split)}]"

    def _split_name(self, split: Split) -> str:
        return self.train_split if split == "train" else self.eval_split or self.train_split

    def load(self, split: Split) -> Sequence[Example]:
        """Read a split; see `TabularTask.load`.

        Raises:
            UserError: If the dataset or the split is not there, or a row is malformed.
        """
        wanted = self._split_name(split)
        if self._splits is None:
            self._splits = self._open()
        if wanted not in self._splits:
            present = list(self._splits)
            raise UserError(
                f"{self.path}: no split '{wanted}'; present: {', '.join(present)} "
                f"({nearest(wanted, present)}); set {split}_split"
            )
        return [
            to_example(
                row,
                self.prompt,
                self.answer,
                f"{self.source(split)}, row {number}",
                self.answer_after,
            )
            for number, row in enumerate(self._splits[wanted], start=1)
        ]

    def _open(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise UserError(
                f"HubDataset needs datasets ({error}): pip install 'rlzoo-lightning[hub]'"
            ) from error
        folder = Path(self.path)
        saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
        try:
            opened: Any = (
                datasets.load_from_disk(self.path)
                if saved
                else datasets.load_dataset(self.path, self.name)
            )
        except Exception as error:
            text = one_line(error, 300)
            raise UserError(
                f"HubDataset.path='{self.path}', name={self.name}: cannot be loaded "
                f"({type(error).__name__}: {text}); correct the path or the name"
            ) from error
        return opened if isinstance(opened, dict) else {"train": opened}
