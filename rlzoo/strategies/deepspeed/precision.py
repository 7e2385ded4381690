"""Precision under DeepSpeed: what the policy's dtype says, and nothing else."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.pytorch.plugins.precision import DeepSpeedPrecision
from torch import nn
from typing_extensions import override


class WeightsAsLoaded(DeepSpeedPrecision):
    """Leaves weights and inputs in the type they have; the policy's dtype decides it."""

    @override
    def convert_module(self, module: nn.Module) -> nn.Module:
        return module

    @override
    def convert_input(self, data: Any) -> Any:
        return data

    @override
    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return nullcontext()
