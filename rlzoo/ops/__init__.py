"""Tensor functions shared by objectives and advantages."""

from rlzoo.ops.aggregation import Aggregation, Denominators, aggregation_weights
from rlzoo.ops.covariance import covariance, largest_share
from rlzoo.ops.kl import KLEstimator, kl_penalty
from rlzoo.ops.ratios import (
    LOG_RATIO_BOUND,
    bounded_exp,
    masked_mean,
    masked_sum,
    out_of_band,
    product_ratio,
    sequence_ratio,
    token_ratio,
    unit_ratio,
)

__all__ = [
    "LOG_RATIO_BOUND",
    "Aggregation",
    "Denominators",
    "KLEstimator",
    "aggregation_weights",
    "bounded_exp",
    "covariance",
    "kl_penalty",
    "largest_share",
    "masked_mean",
    "masked_sum",
    "out_of_band",
    "product_ratio",
    "sequence_ratio",
    "token_ratio",
    "unit_ratio",
]
