"""Tasks: prompts with reference answers, made up or read from files."""

from rlzoo.tasks.addition import Addition
from rlzoo.tasks.base import Example, Task
from rlzoo.tasks.chain_sum import ChainSum
from rlzoo.tasks.counted_copies import CountedCopies
from rlzoo.tasks.digit_sorting import DigitSorting
from rlzoo.tasks.hub_dataset import HubDataset
from rlzoo.tasks.json_lines import JsonLines
from rlzoo.tasks.procedural import ProceduralTask
from rlzoo.tasks.reasoning_gym import ReasoningGym

__all__ = [
    "Addition",
    "ChainSum",
    "CountedCopies",
    "DigitSorting",
    "Example",
    "HubDataset",
    "JsonLines",
    "ProceduralTask",
    "ReasoningGym",
    "Task",
]
