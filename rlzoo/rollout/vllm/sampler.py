"""vLLM as the sampler: an engine decodes, and gets the policy's weights whenever they changed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.rollout.base import Sampler, check_request
from rlzoo.rollout.vllm.engine import Answer, Engine, order
from rlzoo.types import Prompts, Rollouts, SamplingParams

_COLDEST = 0.01  # vLLM quietly raises a lower temperature to this
_FAR = 0.3  # nats per token; rounding to bfloat16 moves log-probs by a tenth of that
_COMPARED = 4  # answers


class VLLMSampler(Sampler):
    """Samples through vLLM, in this process or on a server.

    Args:
        engine: ColocatedVLLM, or VLLMServer with one url per process that trains.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._given: list[float] = []

    def check(self, policy: Policy, world_size: int, *, sharded: bool) -> None:
        """Refuse weights in shares, and what the engine refuses; see `Sampler.check`.

        Raises:
            UserError: Naming the setting and the remedy.
        """
        if sharded:
            raise UserError(
                "VLLMSampler needs whole weights in every process, and trainer.strategy spreads "
                "them; use ddp or DeepSpeed below stage 3 without sharded experts, or NativeSampler"
            )
        self.engine.check(policy, world_size)

    def sample(
        self, policy: Policy, prompts: Prompts, num_samples: int, params: SamplingParams, seed: int
    ) -> Rollouts:
        """Draw answers to every prompt; see `Sampler.sample`.

        The log-probs are those that vLLM drew with: of the softmax at the temperature (1 when
        greedy), over what top_k and top_p leave where these are set. An answer's random numbers
        depend on seed, position and sample alone; the logits depend, to rounding, on what vLLM
        happens to batch.

        Raises:
            UserError: If a setting is out of bounds, or the engine fails or answers otherwise than
                asked.
        """
        check_request(policy, prompts, num_samples, params)
        if 0 < params.temperature < _COLDEST:
            raise UserError(
                f"VLLMSampler: temperature {params.temperature} is below what vLLM draws with; use "
                f"0 (greedy), or {_COLDEST} and more"
            )
        answers: list[Answer] = []
        fresh = len(prompts) > 0 and self._share(policy)
        if len(prompts):
            n = num_samples if params.temperature > 0 else 1  # greedy answers are all the same
            orders = [order(params, n, _seed(seed, p), policy.eos_ids) for p in prompts.positions]
            found = self.engine.answer(prompts.rows, orders)
            _check_answers(found, len(prompts), n, params.max_new_tokens, policy.eos_ids)
            answers = [answer for given in found for answer in given * (num_samples // n)]
        try:
            rollouts = Rollouts.of(
                prompts,
                params,
                policy,
                [answer.token_ids for answer in answers],
                [answer.log_probs for answer in answers],
            )
        except FloatingPointError as error:
            raise UserError(
                "the log-probs of vLLM are not finite: training diverged; lower the learning rate"
            ) from error
        if fresh and params.top_k == 0 and params.top_p == 1:
            _compare(policy, rollouts, params.temperature or 1.0)
        return rollouts

    def _share(self, policy: Policy) -> bool:
        """Give the engine the weights if they are others than it has, and say so."""
        now = fingerprint(policy)
        if now == self._given:
            return False
        self._given = []
        self.engine.load(policy)
        self._given = now
        return True


@torch.no_grad()
def fingerprint(policy: Policy) -> list[float]:
    """Return sum and norm of every weight and buffer, in float64.

    PyTorch's version counters would miss engines that write to ``.data``.

    Args:
        policy: Whole on this rank.

    Returns:
        Numbers that differ when the weights do.
    """
    found = []
    for value in policy.causal_lm.state_dict().values():
        if value.is_floating_point():
            found.append(value.sum(dtype=torch.float64))
            found.append(torch.linalg.vector_norm(value, dtype=torch.float64))
    numbers: list[float] = torch.stack(found).tolist()
    return numbers


def _seed(seed: int, position: int) -> int:
    """Return 62 bits, so far apart that those of the samples, which vLLM counts up, never meet."""
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def _check_answers(
    found: Sequence[Sequence[Answer]], prompts: int, n: int, room: int, eos_ids: frozenset[int]
) -> None:
    """Refuse answers that would corrupt masks: too few, too short, too long, or past their end."""
    sizes = {len(given) for given in found}
    if len(found) != prompts or sizes != {n}:
        raise UserError(
            f"VLLMSampler: {prompts} prompts with {n} answers each came back as {len(found)} with "
            f"{sorted(sizes)}; the engine does not do what was asked"
        )
    for answer in (answer for given in found for answer in given):
        ids, size = answer.token_ids, len(answer.token_ids)
        early = any(token in eos_ids for token in ids[:-1])
        cut = size == room or (size > 0 and ids[-1] in eos_ids)
        if early or not cut or size > room or len(answer.log_probs) != size:
            raise UserError(
                f"VLLMSampler: an answer of {size} tokens, {len(answer.log_probs)} log-probs, ends "
                f"neither with one of the policy's EOS {sorted(eos_ids)} nor at {room} tokens; "
                "was the engine started with another model or a shorter max_model_len?"
            )


def _compare(policy: Policy, rollouts: Rollouts, temperature: float) -> None:
    """Refuse an engine that does not compute with the weights that it was just given."""
    sequences = rollouts.sequences(torch.arange(min(_COMPARED, len(rollouts))))
    mask = sequences.mask
    with policy.generating():
        ours = policy.log_probs(sequences, temperature).log_probs
    theirs = rollouts.log_probs[: len(mask), : mask.shape[1]]
    gap = float((theirs - ours)[mask].abs().mean())
    if not gap <= _FAR:
        raise UserError(
            f"VLLMSampler: after the weights were handed over, vLLM's log-probs are {gap:.2f} nats "
            "per token off the policy's: it runs another model, or did not take them"
        )
