"""One report for all tests that look at a whole one."""

import pytest
from synthetic import write_all

from rlzoo.compare.reporting.report import write_report


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Return report.html of 4 variants with 3 seeds, one run failed and one killed half way."""
    return write_report(write_all(tmp_path_factory.mktemp("comparison")))
