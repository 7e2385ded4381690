import pytest
from tiny_runs import fit


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def run_fit(tmp_path):
    """Train the small configuration with changes, in the test's own folder."""
    return lambda changes=None, *args, **options: fit(tmp_path, changes, *args, **options)
