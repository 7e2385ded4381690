"""The command ``rlzoo generate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlzoo.cli.parser import Parser
from rlzoo.models.base import Policy
from rlzoo.rollout.native import NativeSampler
from rlzoo.training.checkpoint import policy_of, read_checkpoint
from rlzoo.types import Prompt, Prompts, SamplingParams


def generate(args: Sequence[str]) -> None:
    """Answer prompts with a trained policy."""
    parser = Parser("generate", "Answer prompts with a trained policy.")
    parser.add_argument("--ckpt_path", required=True, help="checkpoint of rlzoo fit")
    parser.add_argument("--prompt", required=True, action="append", help="may be given repeatedly")
    parser.add_argument("--chat", action="store_true", help="wrap the prompt as a user message")
    parser.add_argument("--samples", type=int, default=1, help="answers per prompt")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--max_new_tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--seed", type=int, default=0, help="seed of the answers")
    given = parser.parse_args(args)
    policy = policy_of(read_checkpoint(given.ckpt_path))
    prompts: list[Any] = [
        [{"role": "user", "content": text}] if given.chat else text for text in given.prompt
    ]
    rows = tuple(
        Prompt(tuple(policy.encode(prompt)), text)
        for prompt, text in zip(prompts, given.prompt, strict=True)
    )
    params = SamplingParams(given.max_new_tokens, given.temperature)
    for line in answers(policy, rows, given.samples, params, given.seed):
        print(line)


def answers(
    policy: Policy, prompts: tuple[Prompt, ...], samples: int, params: SamplingParams, seed: int
) -> list[str]:
    """Return each prompt with an answer to it, ``samples`` times.

    Args:
        policy: What answers.
        prompts: P prompts.
        samples: Answers per prompt.
        params: Length and temperature of the answers.
        seed: Seed of the answers.

    Returns:
        P * ``samples`` texts; one that reached the longest length ends in ``[cut]``.
    """
    numbered = Prompts(prompts, tuple(range(len(prompts))))
    rollouts = NativeSampler().sample(policy, numbered, samples, params, seed)
    return [
        f"{rollouts.prompt(row).text}{completion}{'' if rollouts.terminated[row] else ' [cut]'}"
        for row, completion in enumerate(rollouts.completions)
    ]
