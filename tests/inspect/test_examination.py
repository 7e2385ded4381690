"""The command on a tiny checkpoint: what it writes, shows and refuses."""

import json
import math

import pytest
import torch
from tiny_runs import rlzoo

from rlzoo.inspect.examination import Request, examine
from rlzoo.inspect.frozen import freeze, inspected, move
from rlzoo.inspect.gradients import dot, gradients
from rlzoo.inspect.tokens import choose, find, look
from rlzoo.objective.loss import policy_loss
from rlzoo.training.checkpoint import read_checkpoint
from rlzoo.types import PolicyBatch

pytestmark = pytest.mark.timeout(60)
SMALL = ["--prompts", "4", "--group_size", "4"]
MINE = "inspected_objectives."


@pytest.fixture
def inspect(tmp_path, checkpoint):
    def start(*args):
        return rlzoo(tmp_path, "inspect", "--ckpt_path", str(checkpoint), *SMALL, *args)

    return start


@pytest.fixture
def found(inspect, tmp_path):
    def start(*args):
        run = inspect(*args)
        assert run.code == 0, run.err
        return json.loads((tmp_path / "inspect" / "inspect.json").read_text())

    return start


def cosine(found, a, b):
    names = found["cosine"]["names"]
    return found["cosine"]["matrix"][names.index(a)][names.index(b)]


def test_on_policy_objectives_of_one_mean_are_one(found):
    names = ["GRPO", "GSPO", "CISPO", MINE + "TokenMeanGSPO", "REINFORCE", MINE + "Flipped"]
    seen = found("--updates", "0", "--algorithms", ",".join(names))
    assert cosine(seen, "GRPO", "GSPO") == pytest.approx(1.0, abs=1e-6)
    assert cosine(seen, "CISPO", "TokenMeanGSPO") == pytest.approx(1.0, abs=1e-6)
    assert cosine(seen, "GRPO", "CISPO") < 0.99999
    assert cosine(seen, "REINFORCE", "Flipped") == pytest.approx(-1.0, abs=1e-6)
    for name, facts in seen["objectives"].items():
        sign = -1 if name == "Flipped" else 1
        assert (facts["kept_tokens"], facts["kept_answers"]) == (1.0, 1.0)
        assert facts["weight_min"] == pytest.approx(sign, abs=1e-9)
        assert facts["weight_max"] == pytest.approx(sign, abs=1e-9)
        assert facts["weight_ess"] == pytest.approx(1.0)
        assert facts["grad_norm"] > 0
    ratios = seen["ratios"]
    assert ratios["token_ess"] == ratios["answer_ess"] == 1.0
    assert ratios["token_log_ratio_std"] == ratios["answer_log_ratio_max"] == 0.0


def test_after_updates_the_narrow_clip_loses_answers(found):
    seen = found("--updates", "2")
    facts = seen["objectives"]
    assert list(facts) == ["GRPO", "GSPO", "CISPO"]
    assert facts["GRPO"]["settings"] == {"clip_low": 0.2, "clip_high": 0.3}
    assert facts["GRPO"]["notes"] == ["the checkpoint's settings"]
    assert facts["GSPO"]["kept_answers"] < facts["CISPO"]["kept_answers"] == 1.0
    assert cosine(seen, "GRPO", "GSPO") < 0.999
    assert seen["ratios"]["token_ess"] < 1
    assert seen["optimizer"] == "the checkpoint's optimizer state"


def test_what_is_shown_and_written(inspect, tmp_path):
    names = f"PPO,{MINE}NeedsReference,{MINE}NeedsSettings,{MINE}Loud,{MINE}Constant"
    run = inspect("--algorithms", names, "--output_dir", "there/it")
    assert run.code == 0, run.err
    words = " ".join(run.out.split())
    for part in (
        "16 answers to 4 prompts",
        "moved by 1 update",
        "group advantages instead of a critic's",
        "no KL penalty, entropy bonus",
        "NeedsReference is left out: needs ref_log_probs",
        "NeedsSettings is left out: ",
        "Loud is left out: Loud.clip returned objective of shape",
        "Constant is left out: ",
        "there/it/{inspect.json, inspect.png}",
    ):
        assert part in words
    assert (tmp_path / "there/it/inspect.png").read_bytes()[:4] == b"\x89PNG"
    seen = json.loads((tmp_path / "there/it/inspect.json").read_text())
    assert list(seen["objectives"]) == ["PPO"]
    assert set(seen["left_out"]) == {"NeedsReference", "NeedsSettings", "Loud", "Constant"}


def test_the_same_seed_gives_the_same_and_another_does_not(found):
    first, second, other = (found("--seed", seed) for seed in "778")
    assert first == second
    assert first["objectives"] != other["objectives"]


def test_groups_add_up_to_the_gradient_of_the_whole_step(checkpoint):
    run = inspected(read_checkpoint(str(checkpoint)))
    frozen = freeze(run, 3, 4, 0)
    (item,), _ = choose([find("CISPO")], run.module.settings, 4)
    view = look(item, frozen)
    gradient = gradients(run.module.policy, frozen, {"CISPO": view})["CISPO"]
    policy = run.module.policy
    predicted = policy.log_probs(frozen.rollouts.sequences(torch.arange(12)), frozen.temperature)
    width = predicted.log_probs.shape[1]
    (predicted.log_probs * view.by_log_prob[:, :width]).sum().backward()
    whole = [p.grad for p in policy.parameters() if p.requires_grad]
    for a, b in zip(gradient.parts, whole, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert gradient.groups == 3


def test_the_gradient_is_that_of_the_loss_on_the_live_model(checkpoint):
    """Off-policy, in float32, without the detour over log-probabilities and groups."""
    run = inspected(read_checkpoint(str(checkpoint)))
    frozen, _ = move(run, freeze(run, 4, 4, 0), 1)
    (item,), _ = choose([find("GSPO")], run.module.settings, 4)
    policy = run.module.policy
    found = gradients(policy, frozen, {"GSPO": look(item, frozen)})["GSPO"]
    predicted = policy.log_probs(frozen.rollouts.sequences(torch.arange(16)), frozen.temperature)
    width = predicted.log_probs.shape[1]
    batch = PolicyBatch(
        log_probs=predicted.log_probs,
        old_log_probs=frozen.old_log_probs[:, :width],
        advantages=frozen.advantages(item.advantage).float()[:, :width],
        mask=frozen.mask[:, :width],
    )
    policy_loss(item.algorithm, batch, frozen.denominators).loss.backward()
    whole = [p.grad for p in policy.parameters() if p.requires_grad]
    assert dot(found.parts, whole) == pytest.approx(found.norm * dot(whole, whole) ** 0.5, rel=1e-6)
    assert found.norm == pytest.approx(dot(whole, whole) ** 0.5, rel=1e-5)


def test_a_checkpoint_that_names_what_is_gone_is_refused(checkpoint, tmp_path):
    saved = torch.load(checkpoint, weights_only=True)
    saved["rlzoo"]["config"] = saved["rlzoo"]["config"].replace("DigitSorting", "Sorting")
    torch.save(saved, tmp_path / "old.ckpt")
    run = rlzoo(tmp_path, "inspect", "--ckpt_path", "old.ckpt")
    assert (run.code, run.out) == (2, "")
    assert "'old.ckpt' cannot be rebuilt here" in run.err
    assert len(run.err.splitlines()) == 1


def test_the_whole_zoo_at_once(checkpoint):
    seen = examine(
        inspected(read_checkpoint(str(checkpoint))), Request(("all",), prompts=3, group_size=3)
    )
    assert seen["left_out"] == {}
    assert all(math.isfinite(facts["grad_norm"]) for facts in seen["objectives"].values())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ckpt_path", "gone.ckpt"], "ckpt_path 'gone.ckpt' is not a file"),
        (["--algorithms", "GSPOO"], "no objective 'GSPOO'; did you mean 'GSPO'?"),
        (["--updates", "-1"], "updates must be >= 0, got -1"),
        (["--prompts", "9"], "prompts 9: the task has 8 training prompts"),
        (["--group_size", "1", "--algorithms", "GRPO"], "needs a group of 2"),
        (["--update", "1"], "see rlzoo inspect --help"),
    ],
)
def test_refusals_are_one_line(inspect, args, words):
    run = inspect(*args)
    assert (run.code, run.out) == (2, "")
    [error] = [line for line in run.err.splitlines() if not line.startswith("layout: ")]
    assert words in error
