"""Datasets of the hub, from folders."""

import sys

import pytest

from rlzoo.errors import UserError
from rlzoo.tasks import HubDataset


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    folder = tmp_path_factory.mktemp("saved")
    train = datasets.Dataset.from_list([{"q": f"{i}", "a": i, "level": 2} for i in range(40)])
    test = datasets.Dataset.from_list([{"q": "x", "a": 1}, {"q": "y", "a": None}])
    train.save_to_disk(folder / "one")
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(folder / "both")
    return folder


def test_hub_dataset_reads_a_folder(saved):
    task = HubDataset(str(saved / "both"), prompt="q", answer="a")
    rows = task.examples("train", None, 0)
    assert [(e.prompt, e.target) for e in rows] == [(f"{i}", f"{i}") for i in range(40)]
    assert rows[0].columns == {"level": 2}


def test_data_02_hub_dataset_checks_rows_alike(saved):
    """DATA-02."""
    task = HubDataset(str(saved / "both"), prompt="q", answer="a")
    with pytest.raises(UserError, match=r"both\[test\], row 2: column 'a' is null"):
        task.examples("eval", None, 0)
    with pytest.raises(UserError, match=r"no column 'prompt'; present: a, level, q"):
        HubDataset(str(saved / "both"), answer="a").examples("train", None, 0)


def test_hub_dataset_without_an_eval_split_holds_a_share_out(saved):
    task = HubDataset(
        str(saved / "one"), eval_split=None, prompt="q", answer="a", eval_fraction=0.3
    )
    train, held_out = task.examples("train", None, 0), task.examples("eval", None, 0)
    assert len(train) + len(held_out) == 40
    assert 4 < len(held_out) < 20


def test_hub_dataset_names_the_splits_that_there_are(saved):
    task = HubDataset(str(saved / "both"), eval_split="tests", prompt="q", answer="a")
    with pytest.raises(UserError, match=r"no split 'tests'; present: train, test .*set eval_split"):
        task.examples("eval", None, 0)


def test_hub_dataset_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"HubDataset\.path='.*nowhere'") as info:
        HubDataset(str(tmp_path / "nowhere")).examples("train", None, 0)
    assert "\n" not in str(info.value)


def test_hub_dataset_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"rlzoo-lightning\[hub\]"):
        HubDataset("openai/gsm8k").examples("train", None, 0)
