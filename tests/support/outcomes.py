"""Outcomes in float64, and the worked values that estimators are held to."""

import json
from pathlib import Path

import torch

from rlzoo.advantages import Outcome

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "objectives.json").read_text())
TABLE = GOLDEN["advantages"]


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def outcome(scores, ids=None, valid=None, lengths=None, components=None, weights=None, **extra):
    count = len(scores)
    lengths = torch.tensor([2] * count if lengths is None else lengths)
    scores = float64(scores)
    components = scores[:, None] if components is None else float64(components)
    return Outcome(
        rewards=scores,
        valid=torch.tensor([True] * count if valid is None else valid),
        group_ids=torch.tensor([0] * count if ids is None else ids),
        mask=torch.arange(max(1, int(lengths.max()))) < lengths[:, None],
        components=components,
        weights=float64([1.0] * components.shape[1] if weights is None else weights),
        **extra,
    )


def first(estimator, made):
    """The advantage of each answer, which all its tokens share."""
    advantages = estimator(made).advantages
    for row, mask in zip(advantages, made.mask, strict=True):
        assert len(set(row[mask].tolist())) <= 1
        assert not row[~mask].any()
    return advantages[:, 0]


def close(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, float64(theirs), rtol=tolerance, atol=tolerance)


def float32_outcome(scores, ids=None, valid=None, mask=None, **extra):
    count = len(scores)
    return Outcome(
        rewards=torch.tensor(scores),
        valid=torch.tensor([True] * count if valid is None else valid),
        group_ids=torch.tensor([0] * count if ids is None else ids),
        mask=torch.ones(count, 2, dtype=torch.bool) if mask is None else mask,
        **extra,
    )
