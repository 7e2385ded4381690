"""Hardware by name and by figures."""

import re

import pytest

from rlzoo.errors import UserError
from rlzoo.plan.hardware import hardware


@pytest.mark.parametrize(
    ("name", "figures", "words"),
    [("h1000", {}, "--hardware h1000: did you mean 'h100'?"), (None, {"tflops": -1.0}, "--tflops")],
)
def test_hardware_that_is_not_there_is_refused(name, figures, words):
    given = dict.fromkeys(("memory_gb", "tflops", "bandwidth_gb_s", "interconnect_gb_s"))
    with pytest.raises(UserError, match=re.escape(words)):
        hardware(name, **{**given, **figures})
