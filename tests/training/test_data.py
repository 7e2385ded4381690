"""Prompts: order, positions, resume, what is left out; nothing here needs weights."""

import logging
from types import SimpleNamespace

import pytest

from rlzoo.errors import UserError
from rlzoo.tasks.base import Example, Task
from rlzoo.training.data import IterationBatches, PromptDataModule, PromptLoader, RankBatches
from rlzoo.types import Prompt


@pytest.fixture
def on_rank(monkeypatch):
    def put(rank, world):
        monkeypatch.setattr("rlzoo.distributed.rank", lambda: rank)
        monkeypatch.setattr("rlzoo.distributed.world_size", lambda: world)

    return put


# the order


def test_batches_depend_on_seed_and_iteration_alone():
    one, two = (IterationBatches(10, 3, seed=4) for _ in range(2))
    later = [two.indices(i) for i in (7, 0, 3)]
    assert later == [one.indices(i) for i in (7, 0, 3)]
    assert one.indices(0) != IterationBatches(10, 3, seed=5).indices(0)


def test_a_pass_gives_every_prompt_at_most_once_and_the_next_reshuffles():
    sampler = IterationBatches(10, 3, seed=0)
    assert len(sampler) == 3
    passes = [[i for slot in range(3) for i in sampler.indices(3 * e + slot)] for e in range(4)]
    for indices in passes:
        assert len(set(indices)) == len(indices) == 9
        assert set(indices) < set(range(10))
    assert len({tuple(indices) for indices in passes}) == 4
    # What one pass leaves out comes in another.
    assert {i for indices in passes for i in indices} == set(range(10))


@pytest.mark.parametrize("done", [0, 1, 2, 3, 5])
def test_iteration_goes_on_after_the_finished_ones(done):
    sampler = IterationBatches(8, 4, seed=1, finished=lambda: done)
    assert list(sampler) == [list(enumerate(sampler.indices(done + k))) for k in range(2)]


def test_finished_is_asked_when_a_pass_begins():
    count = [0]
    sampler = IterationBatches(8, 4, seed=1, finished=lambda: count[0])
    first = list(sampler)
    count[0] = 2
    assert list(sampler) != first
    assert next(iter(sampler)) == list(enumerate(sampler.indices(2)))


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_take_disjoint_positions_of_the_same_batch(on_rank, world):
    whole = list(IterationBatches(12, 8, seed=3))
    shares = []
    for rank in range(world):
        on_rank(rank, world)
        shares.append(list(IterationBatches(12, 8, seed=3)))
    for step, batch in enumerate(whole):
        assert sorted(pair for share in shares for pair in share[step]) == batch
        for rank, share in enumerate(shares):
            assert [position % world for position, _ in share[step]] == [rank] * (8 // world)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("size", "batch"), [(7, 2), (6, 6), (3, 5), (5, 2)])
def test_held_out_prompts_are_covered_exactly_once(on_rank, size, batch, world):
    seen, counts = [], set()
    for rank in range(world):
        on_rank(rank, world)
        batches = RankBatches(size, batch)
        assert len(batches) == len(list(batches))
        assert all(len(part) <= batch for part in batches)
        assert all(list(batches)[:-1])  # only the last may be empty
        counts.add(len(batches))
        seen += [pair for part in batches for pair in part]
    assert len(counts) == 1
    assert sorted(seen) == [(i, i) for i in range(size)]


def test_positions_stay_beside_their_prompts():
    rows = [Prompt((1,), "a"), Prompt((2,), "b")]
    (batch,) = PromptLoader(rows, [[(5, 0), (2, 1)]])
    assert batch.rows == tuple(rows)
    assert batch.positions == (5, 2)


# the module


class Words(Task):
    def __init__(self, train=5, held_out=3, chat=False):
        self.sizes, self.chat = {"train": train, "eval": held_out}, chat

    def examples(self, split, size, seed):
        count = self.sizes[split] if size is None else size
        texts = [f"{split} {'x' * i}" for i in range(count)]
        if self.chat:
            texts = [({"role": "user", "content": text},) for text in texts]
        return [Example(text, target=str(i), columns={"row": i}) for i, text in enumerate(texts)]


class Letters:
    """A policy that encodes a character at a time, and a message at a time."""

    def encode(self, prompt):
        if isinstance(prompt, str):
            return [ord(c) for c in prompt]
        return [ord(turn["role"][0]) for turn in prompt]


def module(stage="fit", task=None, iterations=0, **settings):
    data = PromptDataModule(
        task or Words(), **{"prompts_per_iteration": 2, "eval_size": None, **settings}
    )
    progress = {"iterations": iterations}
    data.trainer = SimpleNamespace(
        lightning_module=SimpleNamespace(policy=Letters(), progress=progress)
    )
    data.setup(stage)
    return data


def test_prompts_carry_text_answer_and_columns():
    data = module()
    prompt = data.train_prompts[2]
    assert prompt.text == "train xx"
    assert prompt.token_ids == tuple(map(ord, "train xx"))
    assert (prompt.target, prompt.columns) == ("2", {"row": 2})
    assert [p.text for p in data.eval_prompts] == ["eval ", "eval x", "eval xx"]


def test_what_does_not_fill_a_batch_is_left_out_with_a_word(caplog):
    """BAT-03."""
    with caplog.at_level(logging.INFO, "rlzoo"):
        data = module()
    assert "1 of 5 prompts are left out of each pass" in caplog.text
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [2, 2]
    caplog.clear()
    with caplog.at_level(logging.INFO, "rlzoo"):
        module(task=Words(train=4))
    assert "left out" not in caplog.text


def test_too_few_for_one_batch_is_refused():
    with pytest.raises(UserError, match=r"5 training prompts do not fill .* 6; lower it"):
        module(prompts_per_iteration=6)


def test_loader_goes_on_after_the_finished_iterations():
    order = [[p.text for p in batch.rows] for batch in module().train_dataloader()]
    later = [[p.text for p in batch.rows] for batch in module(iterations=1).train_dataloader()]
    assert later[0] == order[1]
    assert later[1] != order[0]  # of the next pass


def test_evaluation_needs_no_training_prompts():
    data = module("validate")
    assert data.train_prompts == []
    assert len(data.eval_prompts) == 3


def test_training_prompts_come_after_an_evaluation_too():
    """A script may validate first and fit then, with one data module."""
    data = module("validate")
    data.setup("fit")
    assert len(data.train_dataloader()) == 2
    assert [len(data.train_prompts), len(data.eval_prompts)] == [5, 3]


def test_setup_twice_reads_once(monkeypatch):
    data = module()
    monkeypatch.setattr(Words, "examples", None)
    data.setup("fit")
    assert len(data.train_prompts) == 5


def test_limit_on_length(caplog):
    """PRM-01: 'train xxx' has nine characters, and the limit itself is allowed."""
    with pytest.raises(UserError, match=r"1 of 5 train prompts exceed .* 9 \(longest 10\)"):
        module(max_prompt_tokens=9)
    assert len(module(max_prompt_tokens=10).train_prompts) == 5
    with caplog.at_level(logging.INFO, "rlzoo"):
        data = module(max_prompt_tokens=9, long_prompts="drop")
    assert [len(p.token_ids) for p in data.train_prompts] == [6, 7, 8, 9]
    assert "dropped 1 of 5 train prompts over data.max_prompt_tokens 9" in caplog.text
    with pytest.raises(UserError, match="no train prompts are left of 5"):
        module(max_prompt_tokens=3, long_prompts="drop")


def test_chat():
    plain = module(chat=True, system_prompt="Be brief.")
    assert plain.train_prompts[0].token_ids == (ord("s"), ord("u"))
    assert plain.train_prompts[1].text == "train x"
    given = module(task=Words(chat=True))
    assert given.train_prompts[1].token_ids == (ord("u"),)
    assert given.train_prompts[1].text == "user: train x"
    with pytest.raises(UserError, match=r"data.system_prompt has no effect .* data.chat"):
        module(system_prompt="Be brief.")


@pytest.mark.parametrize("name", ["prompts_per_iteration", "eval_batch_size", "max_prompt_tokens"])
def test_counts_below_1_are_refused(name):
    with pytest.raises(UserError, match=f"data.{name} must be >= 1, got 0"):
        PromptDataModule(Words(), **{name: 0})
