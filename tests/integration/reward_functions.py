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


def half(completion):
    """Rewards the first character of a digit, by its value."""
    return int(completion[:1]) / 9 if completion[:1].isdigit() else 0.0


def first_digit_even(completion):
    return float(completion[:1] in ("0", "2", "4", "6", "8"))


first_digit_even.__name__ = "even"
