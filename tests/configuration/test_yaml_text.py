"""What begins with a hash is text where it stands alone, and a comment elsewhere."""

import pytest
import yaml
from repository import ROOT
from tiny_runs import configuration

from rlzoo.cli.commands.settle import settle
from rlzoo.configuration.yaml_text import load_text

CONFIGS = sorted(
    path
    for path in (ROOT / "configs").rglob("*.yaml")
    if "algorithms" not in yaml.safe_load(path.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize("text", ["####", "#### ", "# Be brief", " #x"])
def test_a_lone_hash_is_text(text):
    assert load_text(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("", None), ("a: 1  # b", {"a": 1}), ("# a\nb: 1", {"b": 1}), ("#\n#", None)],
)
def test_comments_are_comments(text, value):
    assert load_text(text) == value


def test_hashes_arrive_from_a_file_and_from_the_command_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+2?", "answer": "#### 4"}')
    task = {"class_path": "JsonLines", "init_args": {"path": str(tmp_path / "rows.jsonl")}}
    task["init_args"]["answer_after"] = "####"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(configuration({"data.task": task, "data.chat": True})))
    found = settle(["--config", str(file), "--data.system_prompt", "# Add"])["data"]
    assert found["task"]["init_args"]["answer_after"] == "####"
    assert found["system_prompt"] == "# Add"


def differing(given, found, key=""):
    """Return keys of a file whose values a run would not have."""
    if isinstance(found, dict) and "class_path" in found and isinstance(given, str):
        given = {"class_path": given}
    if isinstance(given, dict) and isinstance(found, dict):
        pairs = [(f"{key}.{k}", v, found.get(k)) for k, v in given.items()]
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        pairs = [(f"{key}.{i}", a, b) for i, (a, b) in enumerate(zip(given, found, strict=True))]
    elif key.endswith("class_path"):
        return [] if str(given).split(".")[-1] == str(found).split(".")[-1] else [key]
    else:
        return [] if given == found or str(given) == str(found) else [f"{key}: {given} -> {found}"]
    return [name for pair in pairs for name in differing(pair[1], pair[2], pair[0])]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_is_printed_back_as_it_was_written(path):
    """Parts are layered on the quickstart; parts of several devices are read, not started."""
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    whole = "task" in given.get("data", {}) and "policy" in given.get("model", {})
    base = [] if whole else ["--config", str(ROOT / "configs" / "quickstart.yaml")]
    assert differing(given, settle([*base, "--config", str(path)])) == []


def test_a_difference_would_be_seen():
    assert differing({"a": {"b": "####"}}, {"a": {"b": None}}) == [".a.b: #### -> None"]
    assert differing({"a": "GSPO"}, {"a": {"class_path": "rlzoo.GRPO"}}) == [".a.class_path"]
