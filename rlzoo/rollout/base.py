"""The base of samplers, and checks that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.types import Prompts, Rollouts, SamplingParams


class Sampler(Recorded, ABC):
    """Draws answers from a policy.

    Attributes:
        reports_experts: Whether its rollouts of a mixture of experts come with their `routing`.
    """

    reports_experts: bool = False

    def check(self, policy: Policy, world_size: int, *, sharded: bool) -> None:
        """Refuse what cannot work, before any weights are loaded.

        Args:
            policy: The model, whose config can be read.
            world_size: Processes that train.
            sharded: Whether the strategy keeps a share of the weights in each of them.

        Raises:
            UserError: Naming the setting, its value and the remedy.
        """

    @abstractmethod
    def sample(
        self, policy: Policy, prompts: Prompts, num_samples: int, params: SamplingParams, seed: int
    ) -> Rollouts:
        """Draw answers to every prompt.

        An answer depends on the weights, its prompt, the seed, the prompt's position and the number
        of the sample, and on nothing else: not on batch size, order or rank.

        Evaluation calls it with temperature 0, for greedy answers. A rank that only keeps others
        in step calls it without prompts (`keep_pace`), and gets no rows.

        Args:
            policy: The model.
            prompts: P prompts, none included.
            num_samples: G, answers per prompt.
            params: Length, temperature and filters; nothing comes from the checkpoint.
            seed: Seed of this call.

        Returns:
            N = P * G rollouts, prompt by prompt, T = ``params.max_new_tokens``; `Rollouts.of` makes
            them.
        """


def keep_pace(policy: Policy, sampler: Sampler, params: SamplingParams) -> None:
    """Take part in the forward passes of other ranks while this one has nothing to answer.

    Args:
        policy: The model.
        sampler: Samples on the other ranks.
        params: As there.
    """
    if policy.lockstep:
        sampler.sample(policy, Prompts((), ()), 1, params, 0)


def check_request(
    policy: Policy, prompts: Prompts, num_samples: int, params: SamplingParams
) -> None:
    """Refuse what no sampler can do.

    Args:
        policy: The model.
        prompts: P prompts.
        num_samples: G, answers per prompt.
        params: Length, temperature and filters.

    Raises:
        UserError: Naming the setting, its value and the bound.
    """
    bounds = {
        "num_samples": (num_samples, num_samples >= 1, "at least 1"),
        "max_new_tokens": (params.max_new_tokens, params.max_new_tokens >= 1, "at least 1"),
        "temperature": (params.temperature, params.temperature >= 0, "0 (greedy) or more"),
        "top_p": (params.top_p, 0 < params.top_p <= 1, "above 0 and at most 1"),
        "top_k": (params.top_k, params.top_k >= 0, "0 (off) or more"),
    }
    for name, (value, good, bound) in bounds.items():
        if not good:
            raise UserError(f"{name} is {value}; it must be {bound}")
    lengths = [len(prompt.token_ids) for prompt in prompts.rows]
    if min(lengths, default=1) == 0:
        raise UserError(f"prompt {lengths.index(0)} has no tokens; a prompt needs at least one")
    longest, limit = max(lengths, default=0), policy.max_length
    if limit is not None and longest + params.max_new_tokens > limit:
        raise UserError(
            f"a prompt of {longest} tokens and max_new_tokens {params.max_new_tokens} exceed the "
            f"model's {limit} positions; lower max_new_tokens or drop long prompts"
        )
