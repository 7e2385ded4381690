"""Weights that do not train: the reference policy, and the base of adapters."""

import pytest
import torch
from tiny_runs import configuration, fit, reward, rlzoo

from rlzoo.models import DensePolicy

pytestmark = pytest.mark.timeout(60)

EVEN = {"model.rewards": [reward("even_first")]}
LORA = {"model.policy.init_args.lora": {"r": 4, "lora_alpha": 8}}
INITIAL = {"model.reference": "initial", "model.kl": {"coefficient": 0.05}}
FOUR = {"trainer.max_epochs": 2, "model.optimizer.init_args.lr": 0.02}


def kl(run):
    return [value for _, value in run.curves()["policy/kl_ref"]]


def initial_policy():
    settings = configuration()["model"]["policy"]["init_args"]
    policy = DensePolicy(**settings)
    policy.load()
    return policy


@pytest.mark.parametrize(
    "kind",
    [INITIAL, INITIAL | LORA, INITIAL | LORA | {"model.reference": "adapter_base"}],
    ids=["dense", "adapters", "adapters off"],
)
def test_distance_is_0_at_first_and_grows(run_fit, kind):
    """KL-04."""
    run = run_fit(EVEN | FOUR | kind)
    assert abs(kl(run)[0]) < 1e-6
    assert kl(run)[-1] > 1e-5
    assert f"reference: {kind['model.reference']}" in run.err


def test_penalty_in_the_reward_is_logged_too(run_fit):
    placed = {"model.kl": {"coefficient": 0.05, "placement": "reward"}}
    run = run_fit(EVEN | FOUR | INITIAL | placed)
    assert abs(kl(run)[0]) < 1e-6
    assert kl(run)[-1] > 1e-5


def test_a_strong_penalty_holds_the_policy(run_fit):
    free = run_fit(EVEN | FOUR | {"model.reference": "initial"})
    held = run_fit(EVEN | FOUR | INITIAL | {"model.kl": {"coefficient": 10.0}})
    assert kl(held)[-1] < 0.5 * kl(free)[-1]


def test_reference_from_a_folder(run_fit, tmp_path):
    initial_policy().save_pretrained(tmp_path / "same")
    other = DensePolicy(**configuration()["model"]["policy"]["init_args"], init_seed=9)
    other.load()
    other.save_pretrained(tmp_path / "other")
    same = run_fit(EVEN | INITIAL | {"model.reference": "same"})
    assert abs(kl(same)[0]) < 1e-6
    another = run_fit(EVEN | INITIAL | {"model.reference": "other"})
    assert kl(another)[0] > 1e-4


def test_the_reference_is_out_of_reach(run_fit):
    """LIT-02: not trained, not saved, in evaluation mode whatever fit and validate do."""
    run = run_fit(EVEN | FOUR | INITIAL | {"trainer.val_check_interval": 1})
    module = run.module
    frozen = module.learner.reference._frozen
    module.train()
    assert not any(part.training for part in frozen.modules())
    ids = {id(p) for p in frozen.parameters()}
    optimizer = run.trainer.optimizers[0]
    assert not ids & {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert not ids & {id(p) for p in module.parameters()}
    assert not any(p.requires_grad for p in frozen.parameters())
    saved = run.load(4)
    assert all(key.startswith("policy.") for key in saved["state_dict"])
    assert len(saved["state_dict"]) == len(module.policy.state_dict())
    for key, value in initial_policy().state_dict().items():
        assert torch.equal(frozen.state_dict()[key], value), key
    assert any(
        not torch.equal(value, frozen.state_dict()[key])
        for key, value in module.policy.state_dict().items()
    )


@pytest.mark.parametrize("tied", [True, False])
def test_checkpoints_hold_adapters_alone(run_fit, tmp_path, tied):
    """RES-04: neither base nor reference, tied or not, and the checkpoint is enough to go on."""
    key = "model.policy.init_args.config"
    config = configuration()["model"]["policy"]["init_args"]["config"]
    changes = EVEN | FOUR | INITIAL | LORA | {key: config | {"tie_word_embeddings": tied}}
    changes["checkpoint"] = {"every_n_iterations": 2, "keep_last": 5}
    run = run_fit(changes)
    saved = run.load(4)["state_dict"]
    assert saved
    assert [name for name in saved if "lora_" not in name] == []
    trainable = {name for name, p in run.module.named_parameters() if p.requires_grad}
    assert set(saved) == trainable

    path = str(run.checkpoint(2).resolve())
    again = fit(tmp_path, changes, "--ckpt_path", path)
    assert again.code == 0, again.err
    for name, value in run.weights().items():
        assert torch.equal(value, again.weights()[name]), name

    path = str(run.checkpoint(4).resolve())
    done = rlzoo(tmp_path, "export", "--ckpt_path", path, "--output_dir", "merged")
    assert done.code == 0, done.err
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    ids = torch.tensor([run.module.policy.encode("S3142=")])
    with torch.no_grad(), run.module.policy.generating():
        ours = run.module.policy.causal_lm(ids).logits
    torch.testing.assert_close(model(ids).logits, ours, rtol=1e-4, atol=1e-5)
