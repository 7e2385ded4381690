"""Rules that move coefficients: by hand, their state, and what is refused."""

import json
import math

import pytest

from rlzoo.errors import UserError
from rlzoo.training.control import AdaptiveEntropy, AdaptiveKL, check_control, load_states, move

NAN = float("nan")


def kl(target=0.1, horizon=1000, start=0.05):
    rule = AdaptiveKL(target, horizon)
    rule.start(start)
    return rule


def entropy(target=0.2, step=0.005, start=0.0):
    rule = AdaptiveEntropy(target, step)
    rule.start(start)
    return rule


@pytest.mark.parametrize(
    ("measured", "answers", "factor"),
    [
        (0.11, 100, 1.01),  # 1 + .1 * 100 / 1000
        (0.09, 100, 0.99),
        (0.1, 100, 1.0),
        (9.0, 100, 1.02),  # cut at +.2
        (-9.0, 100, 0.98),  # k1 may be negative
        (9.0, 10**6, 1.2),  # a share above 1 counts as 1: never 0 or below
        (0.0, 10**6, 0.8),
    ],
)
def test_adaptive_kl_by_hand(measured, answers, factor):
    rule = kl()
    rule.observe(measured, answers)
    assert rule.coefficient == pytest.approx(0.05 * factor, rel=1e-12)


def test_adaptive_kl_brings_the_kl_to_its_target():
    """A KL that falls as beta rises, 0.01 / beta, settles at the target: beta .1."""
    rule = kl(start=0.02)
    for _ in range(500):
        rule.observe(0.01 / rule.coefficient, 100)
    assert rule.coefficient == pytest.approx(0.1, rel=1e-3)


def test_adaptive_entropy_by_hand():
    """Below: + .005 and it acts; above: - .005 and it does not; at the target it stays."""
    rule, seen = entropy(), []
    for measured in (0.1, 0.1, 0.3, 0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.1):
        rule.observe(measured, 8)
        seen.append(round(rule.coefficient, 9))
    assert seen == [0.005, 0.01, 0.0, 0.01, 0.01, 0.0, 0.0, 0.0, 0.0, 0.005]


def test_move_returns_what_was_used_and_ignores_what_was_not_measured():
    rules = [kl(), entropy(start=0.01)]
    used = move(rules, {"policy/kl_ref": 9.0, "policy/entropy": 0.1}, 1000)
    assert used == {"control/kl_coefficient": 0.05, "control/entropy_coefficient": 0.01}
    used = move(rules, {"policy/kl_ref": NAN}, 1000)
    assert used == pytest.approx(
        {"control/kl_coefficient": 0.06, "control/entropy_coefficient": 0.015}
    )
    used = move(rules, {"policy/kl_ref": math.inf, "policy/entropy": NAN}, 1000)
    assert used["control/kl_coefficient"] == pytest.approx(0.06)
    assert rules[1].coefficient == pytest.approx(0.015)


@pytest.mark.parametrize("make", [kl, entropy])
def test_the_state_goes_on_where_it_was_bit_for_bit(make):
    metrics = [0.3, 0.05, 0.13, 0.25, 0.1, 0.07, 0.31, 0.02]
    straight, first = make(), make()
    for value in metrics:
        straight.observe(value, 300)
    for value in metrics[:4]:
        first.observe(value, 300)
    states = json.loads(json.dumps({first.setting: first.state()}))
    resumed = make()
    load_states([resumed], states)
    assert resumed.coefficient == first.coefficient
    for value in metrics[4:]:
        resumed.observe(value, 300)
    assert resumed.state() == straight.state()
    anew = make()
    load_states([anew], {})
    assert anew.coefficient == make().coefficient


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AdaptiveKL(0.0), "AdaptiveKL: target must be > 0, got 0.0"),
        (lambda: AdaptiveKL(0.1, -1), "AdaptiveKL: horizon must be > 0, got -1"),
        (lambda: kl(start=0.0), "multiplies model.kl.coefficient, which is 0.0; set it"),
        (lambda: AdaptiveEntropy(NAN), "AdaptiveEntropy: target must be > 0, got nan"),
        (lambda: AdaptiveEntropy(step=0), "AdaptiveEntropy: step must be > 0, got 0"),
        (lambda: entropy(start=-0.1), "model.entropy_coefficient is -0.1; start from 0 or more"),
        (lambda: check_control([kl(), kl()]), "AdaptiveKL and AdaptiveKL would both set the kl"),
    ],
)
def test_settings_that_cannot_act_are_refused(build, message):
    with pytest.raises(UserError, match=message):
        build()
    check_control([kl(), entropy()])
