"""Runs of the command line that must end early."""

import pytest
from tiny_runs import fit, rlzoo


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def refused(tmp_path):
    """Start a run that must end before weights load: status 2, one line on stderr."""

    def refuse(changes=None, *args, weights=False):
        run = fit(tmp_path, changes, *args, weights=weights)
        return the_line(run)

    return refuse


@pytest.fixture
def command(tmp_path):
    """Run a command in the test's folder."""
    return lambda *args: rlzoo(tmp_path, *args, weights=False)


def the_line(run):
    assert run.code == 2, run.err
    lines = run.err.splitlines()
    assert len(lines) == 1, run.err
    assert lines[0].startswith("rlzoo: error: ")
    assert run.out == ""
    return lines[0]
