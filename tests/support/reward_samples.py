"""Rewards that misbehave; at the top level of a module so that workers can import them."""

from __future__ import annotations

import itertools
import os
import time

from rlzoo.rewards import Reward, Sample


def sample(row: int = 0, completion: str = "4", answer: str = "4", **fields) -> Sample:
    values = {"prompt": "2+2=", "terminated": True, "num_tokens": 2, "columns": {}}
    return Sample(row=row, completion=completion, target=answer, **{**values, **fields})


class Sleeper(Reward):
    """Sleeps as many seconds as the completion says; scores the row number."""

    def reward(self, sample):
        time.sleep(float(sample.completion or 0))
        return float(sample.row)


class Busy(Reward):
    """Never returns from C code when told to, so no Python signal handler can run."""

    def reward(self, sample):
        if sample.completion == "hang":
            sum(itertools.repeat(0))
        return 1.0


class Dies(Reward):
    def reward(self, sample):
        if sample.completion == "die":
            os._exit(3)
        return 1.0


class Picky(Reward):
    def reward(self, sample):
        if sample.completion == "bad":
            raise RuntimeError("no such\nnumber")
        return 1.0


class Hidden(Exception):
    def __init__(self, a, b):
        super().__init__(a)


class Unpicklable(Reward):
    """Raises an exception that cannot be unpickled."""

    def reward(self, sample):
        raise Hidden("shy", "error")


class Returns(Reward):
    def __init__(self, value, **kwargs):
        super().__init__(**kwargs)
        self.value = value

    def reward(self, sample):
        return self.value if sample.row == 7 else 0.0


class ReturnsAll(Reward):
    def __init__(self, values, **kwargs):
        super().__init__(**kwargs)
        self.values = values

    def reward(self, sample):
        raise AssertionError("a batch reward is called with the batch")

    def reward_all(self, samples):
        return self.values


class SlowBatch(ReturnsAll):
    def reward_all(self, samples):
        time.sleep(60)
        return self.values


class BreaksOnLoad(Reward):
    def __getstate__(self):
        return {"x": 1}

    def __setstate__(self, state):
        raise ImportError("no module named codex")

    def reward(self, sample):
        return 1.0


def closeness(completion, answer, tolerance):
    return float(abs(int(completion) - int(answer)) <= tolerance)


def longest_wins(completions, answers, level):
    longest = max(map(len, completions))
    return [
        float(len(c) == longest and a == lv)
        for c, a, lv in zip(completions, answers, level, strict=True)
    ]


def greedy(**kwargs):
    return float(len(kwargs))


def optional(completion, level="none"):
    return 1.0 if level == "none" else 0.5


def positional(completion, /):
    return 1.0


def first_digit(completion):
    return int(completion[0])


def length(completion):
    return len(completion)
