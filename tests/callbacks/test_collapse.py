"""The monitor's own state, and where it cannot act."""

from unittest import mock

import pytest
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy

from rlzoo.callbacks.collapse import CollapseMonitor
from rlzoo.callbacks.collapse_rules import KLAbove, default_rules
from rlzoo.errors import UserError


def test_other_rules_after_a_resume_count_anew():
    one = CollapseMonitor(rules=[KLAbove("old", 1.0)])
    one.history, one.streaks, one.rollbacks = [{"policy/kl_old": 2.0}], [2], 1
    same, other = CollapseMonitor(rules=[KLAbove("old", 3.0)]), CollapseMonitor()
    for monitor in (same, other):
        monitor.load_state_dict(one.state_dict())
        assert monitor.history == one.history
        assert monitor.history is not one.history
        assert monitor.rollbacks == 1
    assert same.streaks == [2]
    assert other.streaks == [0] * len(default_rules())


@pytest.mark.parametrize("kind", [DeepSpeedStrategy, FSDPStrategy])
def test_sharded_weights_are_not_rolled_back(kind):
    trainer = mock.Mock(strategy=mock.Mock(spec=kind))
    with pytest.raises(UserError, match="rollback copies whole weights"):
        CollapseMonitor("rollback").setup(trainer, mock.Mock(), "fit")
