"""Rollouts from ids and log-probs, and what filters do to them."""

from dataclasses import dataclass

import pytest
import torch

from rlzoo.types import Prompt, Prompts, Rewards, Rollouts, SamplingParams


@dataclass
class Letters:
    """Ids that are letters; 0 ends an answer, 9 pads."""

    eos_ids = frozenset({0})
    pad_id = 9
    device = torch.device("cpu")

    def decode(self, ids):
        return "".join(chr(97 + i) for i in ids if i not in self.eos_ids)


PROMPTS = Prompts((Prompt((1,), "a"), Prompt((2, 3), "b")), (4, 7))
PARAMS = SamplingParams(max_new_tokens=3, temperature=0.5)
IDS = [[1, 0], [2, 2, 2], [0], [3, 1, 0]]
LOG_PROBS = [[-0.1, -0.2], [-0.3, -0.4, -0.5], [-0.6], [-0.7, -0.8, -0.9]]


def made(ids=IDS, log_probs=LOG_PROBS, **options):
    return Rollouts.of(PROMPTS, PARAMS, Letters(), ids, log_probs, **options)


def test_masks_padding_and_texts_are_made_from_lengths():
    """The second answer was cut: it is as long as allowed, and its last id ends nothing."""
    rollouts = made()
    assert rollouts.mask.tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]]
    assert rollouts.token_ids.tolist() == [[1, 0, 9], [2, 2, 2], [0, 9, 9], [3, 1, 0]]
    assert rollouts.log_probs[0].tolist() == pytest.approx([-0.1, -0.2, 0])
    assert rollouts.terminated.tolist() == [True, False, True, True]
    assert rollouts.completions == ("b", "ccc", "", "db")
    assert rollouts.group_ids.tolist() == [4, 4, 7, 7]
    assert (rollouts.group_size, rollouts.params) == (2, PARAMS)


def test_tensors_with_lengths_give_the_same_whatever_stands_after_the_end():
    ids, log_probs = torch.full((4, 3), 5), torch.full((4, 3), torch.nan)
    for row, (some, numbers) in enumerate(zip(IDS, LOG_PROBS, strict=True)):
        ids[row, : len(some)] = torch.tensor(some)
        log_probs[row, : len(some)] = torch.tensor(numbers)
    ours, theirs = made(ids, log_probs, lengths=torch.tensor([2, 3, 1, 3])), made()
    for name in ("token_ids", "mask", "terminated", "log_probs", "group_ids"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.completions == theirs.completions


def test_what_a_sampler_may_not_return():
    with pytest.raises(ValueError, match="as many log-probs as ids"):
        made(log_probs=[[-0.1], *LOG_PROBS[1:]])
    with pytest.raises(ValueError, match="as many log-probs as ids"):
        made(ids=[[1, 1, 1, 1], *IDS[1:]], log_probs=[[-1.0] * 4, *LOG_PROBS[1:]])
    for ids, log_probs in ((torch.zeros(4, 3), torch.zeros(4, 3)), (torch.zeros(4, 3), LOG_PROBS)):
        with pytest.raises(ValueError, match="two tensors and the lengths"):
            made(ids.long(), log_probs)
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        made(log_probs=[[-0.1, float("nan")], *LOG_PROBS[1:]])


def test_marks_add_up_and_leave_the_rows_where_they_are():
    rollouts = made()
    first, second = torch.tensor([True, False, False, False]), ~made().terminated
    marked = rollouts.leave_out(first).leave_out(second).skip(first)
    assert marked.left_out.tolist() == [True, True, False, False]
    assert marked.skipped.tolist() == [True, False, False, False]
    assert rollouts.left_out is None
    valid = torch.tensor([True, True, False, True])
    mask = marked.training_mask(Rewards([[1.0]] * 4, torch.ones(4), valid))
    assert mask.sum(-1).tolist() == [0, 0, 0, 3]


def test_no_prompts_give_no_rows():
    empty = Rollouts.of(Prompts((), ()), PARAMS, Letters(), [], [])
    assert (len(empty), empty.mask.shape) == (0, (0, 3))
