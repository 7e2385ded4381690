"""Rewards that tests name by import path."""

import random

import numpy as np
import torch


def first_b(completion):
    return float(completion.startswith("b"))


def first_not_b(completion):
    return -float(completion.startswith("b"))


def length(num_tokens):
    return num_tokens / 4


def lottery(completion):
    """Depends on every generator of the process."""
    return len(completion) + random.random() + np.random.rand() + torch.rand(()).item()


def constant(completion):
    return 1.0


def too_few(completions):
    return [1.0] * (len(completions) - 1)


def not_a_number(row):
    return float("nan") if row == 5 else 1.0


def raising(row):
    if row == 3:
        raise KeyError("units")
    return 1.0


def even_first(completion):
    """About half of what an untrained policy says."""
    return float(completion[:1] in ("0", "2", "4", "6", "8"))


def abstaining(completion):
    return None


def silent_for_short_prompts(prompt, completion):
    return 1.0 if prompt == "a" else float("b" in completion)


RECORDED = []


def record(completions, prompts, answers, rows, tag):
    RECORDED.append(
        {
            "completions": completions,
            "prompts": prompts,
            "answers": answers,
            "rows": rows,
            "tag": tag,
        }
    )
    return [float(len(completion)) for completion in completions]
