"""rlzoo: policy-gradient objectives for language models, on PyTorch Lightning.

What a script needs is imported from here. A module is loaded when a name of it is first asked for,
so that ``import rlzoo`` by itself loads no library.
"""

import importlib as _importlib
from typing import Any as _Any

__version__ = "0.1.0"

DOOR: dict[str, tuple[str, ...]] = {
    "rlzoo.training.module": ("RLModule",),
    "rlzoo.training.data": ("PromptDataModule",),
    "rlzoo.training.settings": ("Evaluation", "Schedule", "Settings", "ValueSettings"),
    "rlzoo.training.cold_start": ("ColdStart",),
    "rlzoo.training.control": ("AdaptiveEntropy", "AdaptiveKL", "Controller"),
    "rlzoo.models": (
        *("Critic", "DensePolicy", "MoEPolicy", "Policy", "SeparateCritic", "SharedCritic"),
    ),
    "rlzoo.rollout": ("ColocatedVLLM", "NativeSampler", "Sampler", "VLLMSampler", "VLLMServer"),
    "rlzoo.rewards": (
        *("ExactMatch", "FirstLineMatch", "FunctionReward", "LengthPenalty", "MathAnswer"),
        *("OverlongPenalty", "ReasoningGymReward", "RegexFormat", "Reward", "Sample", "TagFormat"),
    ),
    "rlzoo.tasks": (
        *("Addition", "ChainSum", "CountedCopies", "DigitSorting", "Example", "HubDataset"),
        *("JsonLines", "ProceduralTask", "ReasoningGym", "Task"),
    ),
    "rlzoo.filters": (
        "DynamicSampling",
        "Filter",
        "Iteration",
        "MaskTruncated",
        "SkipSilentGroups",
    ),
    "rlzoo.advantages": (
        *("GAE", "GDPO", "OPO", "Advantage", "BatchNormalized", "Estimate", "GroupCentered"),
        *("GroupNormalized", "LeaveOneOut", "MaxRL", "Outcome", "PassAtKAdvantage"),
        *("ReinforcePP", "ReinforcePPBaseline"),
    ),
    "rlzoo.objective": ("Correction", "KLPenalty", "policy_loss"),
    "rlzoo.objective.corrections": (
        *("MaskedIS", "OffPolicySequenceMask", "TopEntropyMask", "TruncatedIS"),
    ),
    "rlzoo.callbacks": ("CollapseMonitor", "CollapseRule", "IterationCheckpoint", "Report"),
    "rlzoo.strategies": ("DeepSpeedExpertParallelStrategy", "FSDP2Strategy"),
    "rlzoo.types": ("PolicyBatch", "Prompt", "Prompts", "Rewards", "Rollouts", "SamplingParams"),
    "rlzoo.errors": ("UserError",),
}
"""Module to the names that come from it; ``rlzoo.algorithms`` adds every objective."""

_HOME = {name: module for module, names in DOOR.items() for name in names}


def __getattr__(name: str) -> _Any:
    if name in _HOME:
        return getattr(_importlib.import_module(_HOME[name]), name)
    # Objectives are found by looking, so that one more is one more file and no edit here.
    if name == "__all__" or name[:1].isupper():
        objectives = _importlib.import_module("rlzoo.algorithms")
        if name == "__all__":
            classes = [key for key in objectives.__all__ if key[:1].isupper()]
            return sorted({*_HOME, *classes, "__version__"})
        if name in objectives.__all__:
            return getattr(objectives, name)
    raise AttributeError(f"module 'rlzoo' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
