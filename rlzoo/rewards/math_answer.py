"""A reward that compares mathematical answers by value."""

from __future__ import annotations

import logging
import re
from typing import Any

from rlzoo.errors import UserError
from rlzoo.rewards.base import Reward, Sample

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TAG = re.compile(r"</?(?:answer|think)>")


class MathAnswer(Reward):
    """1 if Math-Verify finds the completion equal to the reference answer, else 0.

    Reads the last ``<answer>...</answer>`` if there is one, else the whole completion. The time
    limits of Math-Verify are signal alarms, which fail outside the main thread and cancel an alarm
    that somebody else has set; they are off, and ``timeout`` bounds each row instead.

    Args:
        timeout: Seconds one row may take; ``10^{10^{10}}`` would take minutes.
        **kwargs: Options of every reward.
    """

    def __init__(self, timeout: float | None = 5.0, **kwargs: Any) -> None:
        super().__init__(timeout=timeout, **kwargs)

    def prepare(self) -> None:
        """Import Math-Verify."""
        _math_verify()

    def reward(self, sample: Sample) -> float:
        """Compare the completion with the reference answer.

        Args:
            sample: The answer with its reference answer.

        Returns:
            1.0 or 0.0.

        Raises:
            ValueError: If the reference answer holds no mathematical expression.
        """
        math_verify = _math_verify()
        gold = _parse_expression(sample.target)
        if not gold:
            raise ValueError(
                f"no mathematical expression in the reference answer '{sample.target}'"
            )
        tagged = _ANSWER.findall(sample.completion)
        if tagged:
            found = _parse_expression(tagged[-1])
        else:
            found = _parse(_TAG.sub(" ", sample.completion))
        return float(math_verify.verify(gold, found, timeout_seconds=None))


def _parse(text: str) -> list[Any]:
    found: list[Any] = _math_verify().parse(text, parsing_timeout=None)
    return found


def _parse_expression(text: str) -> list[Any]:
    """Parse text that is one expression, which Math-Verify only reads between delimiters."""
    text = text.strip()
    if not text or "$" in text or "\\boxed" in text:
        return _parse(text)
    return _parse(f"${text}$") or _parse(text)


def _math_verify() -> Any:
    try:
        import math_verify
    except ImportError as error:
        raise UserError(
            f"MathAnswer needs math-verify ({error}): pip install 'rlzoo-lightning[math]'"
        ) from error
    for module in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(module).addFilter(_no_timeout_notice)
    return math_verify


def _no_timeout_notice(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Timeout is disabled")
