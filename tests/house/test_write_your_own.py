"""The page on writing an objective: its class trains, its five lines print what they say."""

import re

import torch
from repository import ROOT, read, rlzoo, run

PAGE = read("docs/write_your_own.md")


def block(marker):
    return re.search(rf"<!-- example: {marker} -->\n```python\n(.*?)```", PAGE, re.S)[1]


def test_the_class_is_short_and_trains(tmp_path):
    code = block("root_band.py")
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    (tmp_path / "root_band.py").write_text(code, encoding="utf-8")
    [line] = re.findall(r"^rlzoo (fit .*root_band.*)$", PAGE, re.M)
    words = line.split()
    words[words.index("--config") + 1] = str(ROOT / "configs" / "quickstart.yaml")
    small = ["--trainer.limit_train_batches", "1", "--trainer.num_sanity_val_steps", "0"]
    small += [
        "--trainer.val_check_interval",
        "1",
        "--data.eval_size",
        "4",
        "--model.cold_start",
        "null",
    ]
    printed = run(rlzoo(*words, *small), tmp_path)
    assert "RootBand (width=0.1)" in printed


def test_the_five_lines_print_what_they_say(tmp_path, monkeypatch):
    (tmp_path / "root_band.py").write_text(block("root_band.py"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    names = {}
    exec(compile(block("try it"), "try_it", "exec"), names)
    gradient = names["new"].grad
    assert gradient[0].tolist() == [0.0] * 4
    assert gradient[1, 0] < 0
    assert torch.equal(gradient[1, 1:], torch.zeros(3))
    assert names["stats"].means()["policy/clip_fraction"] == 0.8
