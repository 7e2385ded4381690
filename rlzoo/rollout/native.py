"""rlzoo's own sampler: plain PyTorch, any causal language model of transformers.

One prefill per prompt, its keys and values repeated for the answers; finished answers leave the
batch and waiting ones take their place; one seeded stream of random numbers per answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.errors import UserError
from rlzoo.models.base import Policy
from rlzoo.rollout.base import Sampler, check_request
from rlzoo.rollout.decoding.choice import decoder_for
from rlzoo.rollout.decoding.decoders import Decoder, generic_decoder
from rlzoo.rollout.decoding.expert_trace import ExpertTrace
from rlzoo.rollout.decoding.token_choice import draw
from rlzoo.types import Prompts, Rollouts, SamplingParams

_PREFILL_TOKENS = 16384  # most prompt tokens read at once, padding included: it bounds memory
# Leaving copies keys and values of the rows that move up, so one answer in 16 has to be over.
_LEAVE_AT = 16
# Joining reads prompts while all other answers wait, so one place in 8 has to be free.
_JOIN_AT = 8
_PER_ANSWER = ("rows", "counts", "tokens", "alive", "ended", "draws")


class NativeSampler(Sampler):
    """Samples with the training weights, in this process.

    Args:
        max_concurrent: Most answers that are decoded at the same time; further ones wait for a
            place. Bounds memory, not what can be asked for.
        decoder: auto takes rlzoo's own decoder, which is faster, where it gives a model's logits;
            transformers never takes it.
    """

    reports_experts = True

    def __init__(
        self, max_concurrent: int = 512, decoder: Literal["auto", "transformers"] = "auto"
    ) -> None:
        if max_concurrent < 1:
            raise UserError(
                f"NativeSampler: max_concurrent must be at least 1, not {max_concurrent}"
            )
        if decoder not in ("auto", "transformers"):
            raise UserError(
                f"NativeSampler: decoder '{decoder}' is unknown; use auto or transformers"
            )
        self.max_concurrent, self.decoder = max_concurrent, decoder

    def sample(
        self, policy: Policy, prompts: Prompts, num_samples: int, params: SamplingParams, seed: int
    ) -> Rollouts:
        """Draw answers to every prompt; see `Sampler.sample`.

        The log-probs are those of the whole softmax at the temperature (1 when greedy), before
        top_k and top_p, so that they compare with `Policy.log_probs`.

        Raises:
            UserError: If a setting is out of bounds, or the model's logits are not finite.
        """
        check_request(policy, prompts, num_samples, params)
        size = len(prompts) * num_samples
        with policy.generating(), policy.noting_experts() as noted:
            out = _Answers.empty(prompts, num_samples, params.max_new_tokens, policy, noted)
            rows = max(1, min(size, self.max_concurrent))
            run = _Sampling(self, policy, prompts, num_samples, params, seed, out, rows)
            with run.decoder.weights():
                run.finish()
        return out.rollouts(policy, prompts, params)

    def ends(self, tokens: Tensor, eos: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        """Say which answers are complete with the token they were just given.

        Args:
            tokens: (n,) the latest tokens.
            eos: (ids,) that end an answer.
            rows: (n,) where the answers stand in the rollouts.
            counts: (n,) tokens given so far, this one included.

        Returns:
            (n,) bool.
        """
        return (tokens[:, None] == eos).any(-1)


@dataclass
class _Answers:
    """The result while it is being written; one column more than T takes what nobody reads."""

    token_ids: Tensor
    log_probs: Tensor
    lengths: Tensor
    terminated: Tensor
    trace: ExpertTrace

    @staticmethod
    def empty(
        prompts: Prompts,
        num_samples: int,
        width: int,
        policy: Policy,
        noted: Callable[[], Tensor | None],
    ) -> _Answers:
        device, size = policy.device, len(prompts) * num_samples
        asked = torch.tensor([len(prompt.token_ids) for prompt in prompts.rows], device=device)
        return _Answers(
            trace=ExpertTrace(noted, asked.repeat_interleave(num_samples), width),
            token_ids=torch.zeros(size, width + 1, dtype=torch.long, device=device),
            log_probs=torch.zeros(size, width + 1, device=device),
            lengths=torch.zeros(size, dtype=torch.long, device=device),
            terminated=torch.zeros(size, dtype=torch.bool, device=device),
        )

    def rollouts(self, policy: Policy, prompts: Prompts, params: SamplingParams) -> Rollouts:
        try:
            return Rollouts.of(
                prompts,
                params,
                policy,
                self.token_ids[:, :-1],
                self.log_probs[:, :-1],
                lengths=self.lengths,
                terminated=self.terminated,
                routing=self.trace.experts,
            )
        except FloatingPointError as error:
            raise UserError(
                "the model's logits are NaN: training diverged; lower the learning rate"
            ) from error


class _Sampling:
    """One call of `sample`: who waits, who is being decoded, and where their tokens go.

    All per-answer tensors are in the order of the decoder's rows.
    """

    def __init__(
        self,
        sampler: NativeSampler,
        policy: Policy,
        prompts: Prompts,
        num_samples: int,
        params: SamplingParams,
        seed: int,
        out: _Answers,
        places: int,
    ) -> None:
        self.sampler, self.policy, self.prompts = sampler, policy, prompts
        self.num_samples, self.params, self.seed = num_samples, params, seed
        self.out, self.places = out, places
        self.waiting = deque(_parts(len(prompts), num_samples, places))
        choose = generic_decoder if sampler.decoder == "transformers" else decoder_for
        self.decoder: Decoder = choose(policy, places, params.max_new_tokens)
        self.eos = torch.tensor(sorted(policy.eos_ids), device=policy.device, dtype=torch.long)
        none = torch.zeros(0, dtype=torch.long, device=policy.device)
        self.rows, self.counts, self.tokens = none, none, none
        self.alive = self.ended = none.bool()
        self.draws = self._uniforms([])

    def finish(self) -> None:
        """Decode until nobody is left, on any rank where the ranks must keep step."""
        while True:
            busy = bool(len(self.rows) or self.waiting)
            anyone = busy
            if self.policy.lockstep:
                anyone = distributed.any_over_ranks(busy, self.policy.device)
            if not anyone:
                return
            if not busy:
                self.decoder.idle()
                continue
            admitted = self._admit()
            if admitted:
                self._join(admitted)
            else:
                logits = self.decoder.step(self.tokens)
                self.out.trace.answers(self.rows, self.counts)
                self._take(logits, slice(0, len(self.rows)))
            self._leave()

    def _admit(self) -> list[tuple[int, range]]:
        """Take from those who wait as many as there are places for, in whole parts."""
        free = self.places - len(self.rows)
        if not self.waiting or (len(self.rows) and not self.decoder.joins):
            return []
        if len(self.rows) and free < self.places / _JOIN_AT:
            return []
        admitted: list[tuple[int, range]] = []
        width = 0
        while self.waiting and len(self.waiting[0][1]) <= free:
            prompt, samples = self.waiting[0]
            width = max(width, len(self.prompts.rows[prompt].token_ids))
            if admitted and width * (len(admitted) + 1) > _PREFILL_TOKENS:
                break
            admitted.append(self.waiting.popleft())
            free -= len(samples)
        return admitted

    def _join(self, admitted: list[tuple[int, range]]) -> None:
        device = self.policy.device
        repeats = torch.tensor([len(samples) for _, samples in admitted])
        owners = torch.arange(len(admitted)).repeat_interleave(repeats).to(device)
        ids = [self.prompts.rows[prompt].token_ids for prompt, _ in admitted]
        logits = self.decoder.prefill(ids, owners)
        answers = [(prompt, sample) for prompt, samples in admitted for sample in samples]
        rows = torch.tensor([p * self.num_samples + g for p, g in answers], device=device)
        self.out.trace.prompts(rows, owners)
        before, zeros = len(self.rows), torch.zeros_like(rows)
        new = {
            "rows": rows,
            "counts": zeros,
            "tokens": zeros,
            "alive": ~zeros.bool(),
            "ended": zeros.bool(),
            "draws": self._uniforms(answers),
        }
        for name in _PER_ANSWER:
            setattr(self, name, torch.cat([getattr(self, name), new[name]]))
        self._take(logits[owners], slice(before, len(self.rows)))

    def _uniforms(self, answers: list[tuple[int, int]]) -> Tensor:
        """Draw (answers, T + 1) numbers in [0, 1), one stream per (position, sample)."""
        width = self.params.max_new_tokens if self.params.temperature > 0 else 0
        numbers = np.zeros((len(answers), width + 1))
        for line, (prompt, sample) in zip(numbers, answers, strict=True):
            key = np.random.SeedSequence([self.seed, self.prompts.positions[prompt], sample])
            line[:width] = np.random.Generator(np.random.Philox(key)).random(width)
        return torch.from_numpy(numbers).to(self.policy.device)

    def _take(self, logits: Tensor, part: slice) -> None:
        """Give each answer in part of the rows its next token."""
        rows, counts, alive = self.rows[part], self.counts[part], self.alive[part]
        greedy = self.params.temperature == 0
        uniforms = None if greedy else self.draws[part].gather(-1, counts[:, None]).squeeze(-1)
        tokens, log_probs = draw(logits, uniforms, self.params)
        # An answer that is over but has not left writes where nobody reads: after its end.
        self.out.token_ids[rows, counts] = tokens
        self.out.log_probs[rows, counts] = log_probs
        self.tokens[part] = tokens
        counts += alive
        ended = alive & self.sampler.ends(tokens, self.eos, rows, counts)
        self.ended[part] |= ended
        alive &= ~ended & (counts < self.params.max_new_tokens)

    def _leave(self) -> None:
        """Let the answers go that are over, once they are worth the copy."""
        over = len(self.rows) - int(self.alive.sum())
        if over == 0 or over < len(self.rows) / _LEAVE_AT:
            return
        gone = ~self.alive
        rows = self.rows[gone]
        self.out.lengths[rows] = self.counts[gone]
        self.out.terminated[rows] = self.ended[gone]
        order = self.decoder.keep(self.alive)
        for name in _PER_ANSWER:
            setattr(self, name, getattr(self, name)[order])


def _parts(prompts: int, num_samples: int, places: int) -> Iterator[tuple[int, range]]:
    """Split P x G answers into whole groups, or parts of one where G exceeds the places."""
    for prompt in range(prompts):
        for first in range(0, num_samples, places):
            yield prompt, range(first, min(first + places, num_samples))
