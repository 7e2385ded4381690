import json

import pytest
from tiny_runs import fit, jsonl


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def run_fit(tmp_path):
    """Train the small configuration with changes, in the test's own folder."""

    def run(changes=None, *args, **options):
        done = fit(tmp_path, changes, *args, **options)
        assert done.code == 0, done.err
        return done

    return run


@pytest.fixture
def letters(tmp_path):
    """A task of letters: five tokens, so that an untrained policy says anything, and stops soon."""
    prompts = ("a", "ab", "abc", "b", "ba", "c", "cb", "ca")
    rows = [{"prompt": p, "answer": p[0], "tag": f"tag {p}"} for p in prompts]
    path = jsonl(tmp_path / "letters.jsonl", *map(json.dumps, rows))
    return {
        "data.task": {"class_path": "JsonLines", "init_args": {"path": path, "eval_path": path}},
        "data.train_size": None,
        "data.eval_size": None,
        "model.policy.init_args.characters": "abc",
        "model.sampling.max_new_tokens": 3,
    }
