"""Rows of a dataset as examples, or what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, PromptText


def to_example(
    row: Mapping[str, Any], prompt: str, answer: str, where: str, answer_after: str | None = None
) -> Example:
    """Check a row and name its columns.

    Args:
        row: The row; columns other than the two named are kept for rewards.
        prompt: The column with text, or with a list of chat messages.
        answer: The column with the reference answer: text, a number or a truth value.
        where: The row as the user knows it, for messages.
        answer_after: Keep only the part of the answer after the last of these marks.

    Returns:
        The example.

    Raises:
        UserError: If a column is missing, null or of another type.
    """
    for column in (prompt, answer):
        if column not in row:
            present = sorted(map(str, row))
            raise UserError(
                f"{where}: no column '{column}'; present: {', '.join(present) or 'none'}; "
                "name one of these as prompt or answer"
            )
    text = _answer(row[answer], f"{where}: column '{answer}'")
    if answer_after is not None:
        _, found, text = text.rpartition(answer_after)
        if not found:
            raise UserError(
                f"{where}: column '{answer}' does not contain '{answer_after}'; "
                "correct the row, or change answer_after"
            )
        text = text.strip()
    rest = {name: value for name, value in row.items() if name not in (prompt, answer)}
    return Example(_prompt(row[prompt], f"{where}: column '{prompt}'"), text, rest)


def _answer(value: Any, where: str) -> str:
    if value is None:
        raise UserError(f"{where} is null; give the row an answer, or remove it")
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    raise UserError(f"{where} is a {type(value).__name__}; an answer is text or a number")


def _prompt(value: Any, where: str) -> PromptText:
    if value is None:
        raise UserError(f"{where} is null; give the row a prompt, or remove it")
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return tuple({"role": turn["role"], "content": turn["content"]} for turn in value)
    what = f"a {type(value).__name__}" if value else "empty"
    raise UserError(
        f"{where} is {what}; a prompt is text, or a list of messages "
        "with 'role' and 'content' as text"
    )


def _is_message(turn: Any) -> bool:
    return isinstance(turn, Mapping) and all(
        isinstance(turn.get(key), str) for key in ("role", "content")
    )
