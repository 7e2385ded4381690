"""A warning that most tokens are clipped."""

import logging

import pytest

from rlzoo.callbacks import Report


def run_of(fractions, caplog):
    report = Report()
    with caplog.at_level(logging.WARNING, "rlzoo"):
        for done, fraction in enumerate(fractions, 1):
            report.warn_of_clipping(done, fraction)
    return [record.getMessage() for record in caplog.records]


def test_ten_iterations_of_mostly_clipped_tokens_warn_once(caplog):
    (message,) = run_of([0.6] * 25, caplog)
    assert message.startswith("iteration 10:")
    assert "widen clip_low and clip_high" in message


@pytest.mark.parametrize("fractions", [[0.6] * 9, ([0.6] * 9 + [0.4]) * 3, [0.5] * 30])
def test_less_is_no_reason_to_warn(fractions, caplog):
    assert run_of(fractions, caplog) == []
