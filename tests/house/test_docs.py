"""The documentation: its glossary is the code's, its examples run."""

import json
import re

import pytest
import yaml
from repository import PACKAGE, ROOT, read, rlzoo, run

PAGES = ["README.md", "CONTRIBUTING.md"]
PAGES += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
SOURCES = "\n".join(p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py")))
GROUPS = (
    "policy|value|reward|rollout|optim|time|tokens|val|moe|model|data|router|correction|control"
)
LITERAL = re.compile(rf"""f?"((?:{GROUPS})/[^"\s]+)\"""")

STATISTIC = re.compile(r'\.(?:add|add_masked|maximum)\(\s*f?"([a-z]+/[^"\s]+)"')


def in_code(source):
    """Return the names of metrics that code writes, a variable part in angle brackets."""
    written = {*LITERAL.findall(source), *STATISTIC.findall(source)} - {"tokens/s"}  # a heading
    names = {re.sub(r"\{([\w.]+)\}", r"<\1>", name) for name in written}
    names |= set(re.findall(r'means\["([\w/]+)"\] =', source))
    if "time/<name>_s" in names:
        parts = set(re.findall(r'timed\("(\w+)"', source))
        names = names - {"time/<name>_s"} | {f"time/{part}_s" for part in parts}
    # Raw moments that are turned into something else before they are logged.
    return names - set(re.findall(r'means\.pop\("([\w/]+)"', source))


def in_glossary(text):
    cells = re.findall(r"^\| `([^`]+)` \|", text, re.M)
    return {cell for cell in cells if "/" in cell or cell == "updates"}


def uneven_rows(text):
    """Return the rows of tables that have another number of cells than their header."""
    found, cells = [], None
    for line in re.sub(r"```.*?```", "", text, flags=re.S).splitlines():
        if not line.startswith("|"):
            cells = None
            continue
        bare = re.sub(r"`[^`]*`", "", line.replace("\\|", ""))  # a pipe in code is not a border
        cells = cells or bare.count("|")
        if bare.count("|") != cells:
            found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_rows_have_as_many_cells_as_their_header(page):
    assert uneven_rows(read(page)) == []


def test_a_row_that_is_short_or_long_is_found():
    head = "| name | formula | unit |\n|---|---|---|\n"
    fine = "| `a\\|b` | `abs(x|y)` | - |\n"
    assert uneven_rows(head + fine + "\n| one |\n|---|\n| 1 |\n") == []
    assert uneven_rows(head + "| `x` | y |\n" + fine) == ["| `x` | y |"]
    assert uneven_rows(head + fine + "| `x` | y | z | w |\n") == ["| `x` | y | z | w |"]


def unexplained_and_gone(code, glossary):
    """Return names that only the code has, and names that only the glossary has.

    An entry may also fill in the variable part of a name: `control/kl_coefficient` for
    `control/<rule.setting>_coefficient`.
    """
    missing, extra = code - glossary, glossary - code
    for name in [name for name in missing if "<" in name]:
        pattern = re.sub(r"<.*?>", r"\\w+", name)
        filled = {entry for entry in extra if re.fullmatch(pattern, entry)}
        if filled:
            missing, extra = missing - {name}, extra - filled
    return missing, extra


def test_every_metric_is_in_the_glossary_and_every_entry_is_a_metric():
    missing, extra = unexplained_and_gone(in_code(SOURCES), in_glossary(read("docs/metrics.md")))
    assert missing == set(), "add these to docs/metrics.md, names in backticks"
    assert extra == set(), "these are not logged any more"


def test_a_missing_name_and_a_stale_entry_are_both_found():
    code = {"policy/loss", "reward/<name>", "control/<x>_coefficient"}
    fine = {"policy/loss", "reward/<name>", "control/kl_coefficient"}
    assert unexplained_and_gone(code, fine) == (set(), set())
    assert unexplained_and_gone(code, fine - {"policy/loss"}) == ({"policy/loss"}, set())
    assert unexplained_and_gone(code, fine | {"reward/old"}) == (set(), {"reward/old"})
    assert unexplained_and_gone(code, fine - {"control/kl_coefficient"})[0]


def test_the_comparison_sees_names_of_every_form():
    source = """
        stats.add("policy/loss", 1, 1)
        stats.add(f"reward/{reward.name}", 1, 1)
        with timed("rollout", stats): stats.add(f"time/{name}_s", 1, 1)
        stats.add("reward/square", 1, 1); square = means.pop("reward/square", None)
        means["updates"] = 1.0
        values = {f"val/pass@{k}": 1}
        stats.maximum("newgroup/name", 1)
    """
    assert in_code(source) == {
        "newgroup/name",
        "policy/loss",
        "reward/<reward.name>",
        "time/rollout_s",
        "updates",
        "val/pass@<k>",
    }
    assert in_glossary("| `policy/loss` | x |\n| `updates` | x |\n| `kl.coefficient` | x |") == {
        "policy/loss",
        "updates",
    }


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Train one iteration with all that can be logged, and return the names in its log."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path_factory.mktemp("logged")
    config = yaml.safe_load(read("configs/quickstart.yaml"))
    config["model"]["cold_start"] = None
    config["trainer"].update(limit_train_batches=1, val_check_interval=1.0)
    config["data"].update(prompts_per_iteration=4, train_size=4, eval_size=4)
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    run(
        rlzoo(
            *("fit", "--config", "config.yaml", "--model.algorithm", "PPO"),
            *("--model.reference", "initial", "--model.kl.coefficient", "0.1"),
            *("--model.entropy_coefficient", "0.01", "--model.minibatches", "2"),
        ),
        folder,
    )
    [version] = folder.glob("runs/quickstart/*")
    events = EventAccumulator(str(version))
    events.Reload()
    return set(events.Tags()["scalars"])


def test_what_a_run_logs_is_what_the_glossary_explains(logged):
    text = read("docs/metrics.md")
    fixed = {name for name in in_glossary(text) if "<" not in name}
    optional = [part for part in text.split("\n## ") if "\nOnly with" in part]
    optional += re.findall(r"^\|.*only with.*", text, re.M)
    conditional = in_glossary("\n".join(optional))
    assert fixed - conditional - logged == set()
    spread = {name for name in logged if name.startswith("policy/spread/")}
    assert spread
    assert logged - fixed - spread == {"reward/exact_match", "val/pass@4", "epoch"}


PATTERN = r"```{}\n(.*?)```"


def blocks(name, language):
    return re.findall(PATTERN.format(language), read(name), re.S)


def test_the_reward_and_the_data_of_the_documentation_train(tmp_path):
    guide = "docs/data_and_rewards.md"
    function, cls = blocks(guide, "python")
    (tmp_path / "my_rewards.py").write_text(function + "\n" + cls, encoding="utf-8")
    row = json.loads(blocks(guide, "json")[0])
    lines = [json.dumps({**row, "prompt": f"{i}+30="}) + "\n" for i in range(40)]
    (tmp_path / "questions.jsonl").write_text("".join(lines), encoding="utf-8")
    [mine] = blocks("README.md", "yaml")
    config = yaml.safe_load(mine)
    config["model"]["rewards"].append({"class_path": "my_rewards.EndsWithAnswer"})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (tmp_path / "quickstart.yaml").write_text(read("configs/quickstart.yaml"), encoding="utf-8")
    run(
        rlzoo(
            *("fit", "--config", "quickstart.yaml", "--config", "mine.yaml"),
            *("--trainer.limit_train_batches", "1", "--trainer.val_check_interval", "1.0"),
            *("--data.prompts_per_iteration", "8"),
        ),
        tmp_path,
    )
    [summary] = tmp_path.glob("runs/quickstart/*/summary.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["iterations"] == 1


@pytest.mark.parametrize("scale", [1.0, 2.0], ids=["0-and-1", "0-and-2"])
def test_two_groups_of_different_scale_get_the_advantages_that_are_written(scale):
    import torch

    from rlzoo.advantages import GroupNormalized, Outcome

    mask, ids = torch.ones(2, 1).bool(), torch.zeros(2).long()
    outcome = Outcome(torch.tensor([0.0, scale]), torch.ones(2).bool(), ids, mask)
    found = GroupNormalized()(outcome).advantages.flatten().tolist()
    assert found == pytest.approx([-0.7071, 0.7071], abs=2e-4)
    assert "-0.7071 and +0.7071" in read("docs/data_and_rewards.md")


def test_yaml_in_the_documentation_parses_and_names_classes_that_exist():
    import rlzoo.rewards
    import rlzoo.tasks
    from rlzoo import advantages

    known = {**vars(rlzoo.rewards), **vars(rlzoo.tasks), **vars(advantages)}
    guide = read("docs/data_and_rewards.md")
    text = "\n".join(re.findall(r"^\| (`.*?) \|", guide, re.M))
    names = re.findall(r"`([A-Z]\w+)`", text)
    assert len(names) > 15
    assert [name for name in names if name not in known] == []
    for cls, short in re.findall(r"^\| `(\w+)` \(`(\S+)`\) \|", guide, re.M):
        assert advantages.ESTIMATORS[short] is known[cls]
    for block in blocks("docs/data_and_rewards.md", "yaml"):
        assert isinstance(yaml.safe_load(block), dict)
