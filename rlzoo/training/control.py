"""Coefficients that move between iterations, to hold the KL or the entropy near a target."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError

State = dict[str, float]


class Controller(Recorded, ABC):
    """Sets a coefficient for the next iteration from a metric of the last.

    The metric is the mean over all updates, micro-batches and ranks, so that every rank sets the
    same coefficient. Its state is part of a checkpoint.

    Attributes:
        setting: Which coefficient: ``kl`` (``kl.coefficient``) or ``entropy``
            (``entropy_coefficient``); the configured value is where it starts.
        watches: Name of the metric.
    """

    setting: ClassVar[Literal["kl", "entropy"]]
    watches: ClassVar[str]

    @abstractmethod
    def start(self, coefficient: float) -> None:
        """Take the configured coefficient.

        Raises:
            UserError: If no rule could move it.
        """

    @property
    @abstractmethod
    def coefficient(self) -> float:
        """What the next iteration uses."""

    @abstractmethod
    def observe(self, value: float, answers: int) -> None:
        """Move the coefficient.

        Args:
            value: The metric of the iteration.
            answers: N over all ranks.
        """

    @abstractmethod
    def state(self) -> State:
        """Return what a checkpoint keeps."""

    @abstractmethod
    def load_state(self, state: Mapping[str, float]) -> None:
        """Take it back."""


class AdaptiveKL(Controller):
    """Raises the weight of the KL penalty while the KL is above a target, and lowers it below.

    ``beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon)``, n the answers of the
    iteration; a share n / horizon above 1 counts as 1.

    Source: arXiv 1909.08593, section 2.2, with n / horizon as in TRL's PPO for its constant 0.1.
    There KL is summed over an answer; here it is ``policy/kl_ref``, in nats per token, so the
    target does not depend on how long answers grow.

    Args:
        target: KL to hold, in nats per token.
        horizon: Answers over which the coefficient can change by a fifth.
    """

    setting: ClassVar[Literal["kl", "entropy"]] = "kl"
    watches: ClassVar[str] = "policy/kl_ref"

    def __init__(self, target: float, horizon: float = 10000) -> None:
        for name, value in (("target", target), ("horizon", horizon)):
            if not value > 0:
                raise UserError(f"AdaptiveKL: {name} must be > 0, got {value}")
        self.target, self.horizon = target, horizon
        self._beta = 0.0

    def start(self, coefficient: float) -> None:
        """Take ``kl.coefficient``, which must not be 0."""
        if not coefficient > 0:
            raise UserError(
                f"model.control AdaptiveKL multiplies model.kl.coefficient, which is {coefficient}"
                "; set it to the value to start from, such as 0.01"
            )
        self._beta = coefficient

    @property
    def coefficient(self) -> float:
        """Beta."""
        return self._beta

    def observe(self, value: float, answers: int) -> None:
        """Multiply beta by at most 1.2 and at least 0.8."""
        error = min(max(value / self.target - 1, -0.2), 0.2)
        self._beta *= 1 + error * min(1.0, answers / self.horizon)

    def state(self) -> State:
        """Return beta."""
        return {"coefficient": self._beta}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Take beta back."""
        self._beta = state["coefficient"]


class AdaptiveEntropy(Controller):
    """Raises the weight of the entropy bonus while the entropy is below a target.

    ``c <- max(0, c + step)`` if the entropy was below the target, ``max(0, c - step)`` if above;
    the bonus is ``c`` while it was at or below the target and 0 while above.

    Source: Skywork-OR1, arXiv 2505.22312, section 4 (target 0.2, step 0.005, from 0), which
    measures the entropy before an update; here it is ``policy/entropy`` of the last iteration.

    Args:
        target: Entropy to hold, in nats per token.
        step: How far the coefficient moves per iteration.
    """

    setting: ClassVar[Literal["kl", "entropy"]] = "entropy"
    watches: ClassVar[str] = "policy/entropy"

    def __init__(self, target: float = 0.2, step: float = 0.005) -> None:
        for name, value in (("target", target), ("step", step)):
            if not value > 0:
                raise UserError(f"AdaptiveEntropy: {name} must be > 0, got {value}")
        self.target, self.step = target, step
        self._raw, self._acts = 0.0, True

    def start(self, coefficient: float) -> None:
        """Take ``entropy_coefficient``; 0 is as good a start as any other."""
        if not coefficient >= 0:
            raise UserError(
                f"model.control AdaptiveEntropy never goes below 0, and model.entropy_coefficient "
                f"is {coefficient}; start from 0 or more"
            )
        self._raw = coefficient

    @property
    def coefficient(self) -> float:
        """Weight of the bonus, 0 above the target."""
        return self._raw if self._acts else 0.0

    def observe(self, value: float, answers: int) -> None:
        """Take a step toward the target."""
        direction = (value < self.target) - (value > self.target)
        self._raw = max(0.0, self._raw + direction * self.step)
        self._acts = value <= self.target

    def state(self) -> State:
        """Return the coefficient and whether it acts."""
        return {"coefficient": self._raw, "acts": float(self._acts)}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Take both back."""
        self._raw, self._acts = state["coefficient"], bool(state["acts"])


def move(
    control: Sequence[Controller], means: Mapping[str, float], answers: int
) -> dict[str, float]:
    """Let every rule see its metric; one that was not measured moves nothing.

    Args:
        control: The rules.
        means: Metrics of the iteration, the same on every rank.
        answers: N over all ranks.

    Returns:
        The coefficients before the move, under the names that are logged.
    """
    used = {f"control/{rule.setting}_coefficient": rule.coefficient for rule in control}
    for rule in control:
        value = means.get(rule.watches, math.nan)
        if math.isfinite(value):
            rule.observe(value, answers)
    return used


def load_states(control: Sequence[Controller], states: Mapping[str, Mapping[str, float]]) -> None:
    """Give every rule its state back, by setting; a rule without one starts anew."""
    for rule in control:
        if rule.setting in states:
            rule.load_state(states[rule.setting])


def check_control(control: Sequence[Controller]) -> None:
    """Refuse two rules for one coefficient.

    Raises:
        UserError: Naming them.
    """
    for setting in ("kl", "entropy"):
        names = [
            type(controller).__name__ for controller in control if controller.setting == setting
        ]
        if len(names) > 1:
            raise UserError(
                f"model.control {' and '.join(names)} would both set the {setting} coefficient; "
                "keep one"
            )
