"""Adding an objective: in a file of one's own, or as one new file in the package, no other edit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rlzoo
from rlzoo import algorithms
from rlzoo.algorithms import Algorithm
from rlzoo.errors import UserError
from rlzoo.objective.loss import policy_loss
from rlzoo.ops import Denominators
from rlzoo.types import PolicyBatch

PACKAGE = Path(rlzoo.__file__).parent
HEADER = """
import torch
from rlzoo.algorithms import Algorithm, Surrogate
from rlzoo.ops import masked_mean, token_ratio
"""
RIGHT = """
class OwnRight(Algorithm):
    aggregation = "sequence-sum"
    def __init__(self, cap: float = 2.0):
        self.cap = self.non_negative("cap", cap)
    def clip(self, ratio, batch):
        weight = ratio.detach().clamp(max=self.cap)
        return Surrogate(weight * batch.advantages * batch.log_probs, ratio > self.cap)
"""
# Each is wrong in one way; the test that must notice it.
WRONG = {
    "test_at_ratio_one_the_gradient_is_reinforce": """
class OwnSignFlipped(Algorithm):
    def clip(self, ratio, batch):
        surrogate = super().clip(ratio, batch)
        return Surrogate(-surrogate.objective, surrogate.clipped)
""",
    "test_what_padding_holds_changes_not_a_bit": """
class OwnReadsPadding(Algorithm):
    def clip(self, ratio, batch):
        surrogate = super().clip(ratio, batch)
        return Surrogate(surrogate.objective * batch.token_ids.float().mean(), surrogate.clipped)
""",
    "test_how_wide_padding_is_changes_nothing": """
class OwnDividesByWidth(Algorithm):
    def ratio(self, batch):
        return (batch.log_probs - batch.old_log_probs).mean(-1, keepdim=True).clamp(-9, 9).exp()
""",
    "test_every_micro_batch_split_adds_up": """
class OwnMicroBatchMean(Algorithm):
    def clip(self, ratio, batch):
        mean = ratio.detach()[batch.mask].mean() if batch.mask.any() else 1.0
        surrogate = super().clip(ratio, batch)
        return Surrogate(surrogate.objective / mean, surrogate.clipped)
""",
    "test_row_order_changes_nothing": """
class OwnFirstRow(Algorithm):
    def clip(self, ratio, batch):
        surrogate = super().clip(ratio, batch)
        return Surrogate(surrogate.objective * ratio[:1, :1].detach(), surrogate.clipped)
""",
    "test_zero_advantage_gives_zero_gradient": """
class OwnLeaks(Algorithm):
    def clip(self, ratio, batch):
        surrogate = super().clip(ratio, batch)
        return Surrogate(surrogate.objective - (ratio - 1).square(), surrogate.clipped)
""",
    "test_finite_at_a_log_ratio_of_100": """
class OwnOverflows(Algorithm):
    def ratio(self, batch):
        return (batch.log_probs - batch.old_log_probs).exp()
""",
    "test_gradient_is_the_derivative": """
class OwnHidesAWeight(Algorithm):
    def clip(self, ratio, batch):
        with torch.no_grad():
            weight = token_ratio(batch.log_probs, batch.old_log_probs)
        return Surrogate(weight * batch.advantages * batch.log_probs, ratio > 2)
""",
}


def name_of(source):
    return re.search(r"class (\w+)", source).group(1)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Drop one file with all of them into a copy of the package and run the property suite."""
    root = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, root / "rlzoo", ignore=ignore)
    shutil.copy(Path(__file__).parent / "test_properties.py", root)
    (root / "rlzoo" / "algorithms" / "own.py").write_text(
        HEADER + RIGHT + "".join(WRONG.values()), encoding="utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--tb=no"]
    done = subprocess.run(
        [*command, "test_properties.py", "-k", "Own"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)\[(\w+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return {(cls, test, state) for state, test, cls in found}


def test_a_file_dropped_into_the_package_is_found_and_passes_the_whole_suite(outcomes):
    mine = {(test, state) for cls, test, state in outcomes if cls == "OwnRight"}
    suite = (Path(__file__).parent / "test_properties.py").read_text(encoding="utf-8")
    assert mine == {
        (name, "PASSED") for name in re.findall(r"^def (test_\w+)", suite, re.MULTILINE)
    }


@pytest.mark.parametrize("test", WRONG)
def test_a_wrong_objective_fails_where_it_is_wrong(outcomes, test):
    assert (name_of(WRONG[test]), test, "FAILED") in outcomes


OWN = """
from rlzoo.algorithms import Algorithm, Surrogate


class Linear(Algorithm):
    '''Unclipped importance sampling.

    Args:
        scale: Multiplies the objective.
    '''

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = self.non_negative("scale", scale)

    def clip(self, ratio, batch):
        objective = self.scale * ratio * batch.advantages
        return Surrogate(objective, objective.isnan())
"""


def test_a_class_in_a_users_own_module_is_named_by_its_path(tmp_path, monkeypatch):
    from jsonargparse import ArgumentError, ArgumentParser

    (tmp_path / "my_objectives.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--algorithm", type=Algorithm)
    chosen = ["--algorithm", "my_objectives.Linear"]
    algorithm = parser.instantiate(parser.parse_args([*chosen, "--algorithm.scale", "3"])).algorithm
    log_probs = torch.tensor([[-1.0, -0.5]], requires_grad=True)
    batch = PolicyBatch(
        log_probs=log_probs,
        old_log_probs=torch.tensor([[-1.5, -0.5]]),
        advantages=torch.tensor([[2.0, -1.0]]),
        mask=torch.tensor([[True, True]]),
    )
    loss, _ = policy_loss(algorithm, batch, Denominators.count(batch.mask))
    loss.backward()
    # -3 (2 e^0.5 - 1) / 2, and each token's -3 r A / 2
    assert loss.item() == pytest.approx(-3 * (2 * 1.6487212707 - 1) / 2)
    assert log_probs.grad.tolist()[0] == pytest.approx([-3 * 1.6487212707, 1.5])
    with pytest.raises(ArgumentError, match="clip_high"):
        parser.parse_args([*chosen, "--algorithm.clip_high", "3"])


def test_a_field_that_an_objective_needs_has_to_be_there():
    class Needy(Algorithm):
        needs = frozenset({"entropy", "group_ids"})

    ones = torch.ones(1, 2)
    batch = PolicyBatch(ones, ones, ones, ones.bool(), group_ids=torch.zeros(1).long())
    with pytest.raises(ValueError, match=r"lacks \['entropy'\]"):
        policy_loss(Needy(), batch, Denominators.count(batch.mask))


@pytest.mark.parametrize("bad", ["(N, 1) objective", "(N,) clipped"])
def test_a_surrogate_of_the_wrong_shape_is_refused(bad):
    class Odd(Algorithm):
        def clip(self, ratio, batch):
            objective, clipped = super().clip(ratio, batch)
            if "objective" in bad:
                return algorithms.Surrogate(objective[:, :1], clipped)
            return algorithms.Surrogate(objective, clipped[:, 0])

    ones = torch.ones(3, 2)
    batch = PolicyBatch(ones, ones, ones, ones.bool())
    with pytest.raises(UserError, match=r"Odd.clip returned (objective|clipped) of shape"):
        policy_loss(Odd(), batch, Denominators.count(batch.mask))


def test_objectives_load_neither_lightning_nor_transformers():
    code = (
        "import sys, rlzoo.algorithms, rlzoo.objective, rlzoo.advantages;"
        "print([m for m in ('lightning', 'pytorch_lightning', 'transformers') if m in sys.modules])"
    )
    root = str(PACKAGE.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
