"""A task read from a file with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, Split
from rlzoo.tasks.columns import to_example
from rlzoo.tasks.tabular import TabularTask


class JsonLines(TabularTask):
    """Reads ``{"prompt": "12+30=", "answer": 42}`` and the like, one object per line.

    A prompt is text, or a list of chat messages with ``role`` and ``content``. Other columns are
    passed to rewards that ask for them.

    Args:
        path: The file.
        eval_path: A second file for evaluation. Without one, a share of the prompts is held out.
        prompt: Name of the column with prompts.
        answer: Name of the column with reference answers.
        answer_after: Keep what follows the last of these marks in an answer, such as ``####``.
        eval_fraction: The share held out if there is no ``eval_path``.
    """

    def __init__(
        self,
        path: str,
        eval_path: str | None = None,
        prompt: str = "prompt",
        answer: str = "answer",
        answer_after: str | None = None,
        eval_fraction: float = 0.1,
    ) -> None:
        super().__init__(eval_fraction, has_eval=eval_path is not None)
        for field, value in (("path", path), ("eval_path", eval_path)):
            if value is not None and not Path(value).is_file():
                raise UserError(
                    f"JsonLines.{field}='{value}': no such file in {Path.cwd()}; correct the path"
                )
        self.path = path
        self.eval_path = eval_path
        self.prompt = prompt
        self.answer = answer
        self.answer_after = answer_after

    def source(self, split: Split) -> str:
        """Name the file of a split."""
        return self.path if split == "train" or self.eval_path is None else self.eval_path

    def load(self, split: Split) -> Sequence[Example]:
        """Read a file; see `TabularTask.load`.

        Raises:
            UserError: If a row is malformed; rows are counted as lines from 1.
        """
        path = self.source(split)
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read as UTF-8 text ({error})") from error
        return [
            self._parse(line, f"{path}, row {number}")
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]

    def _parse(self, line: str, where: str) -> Example:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: not JSON ({error}); write one object per line") from error
        if not isinstance(row, dict):
            raise UserError(f"{where}: a {type(row).__name__}, not an object; write one per line")
        return to_example(row, self.prompt, self.answer, where, self.answer_after)
