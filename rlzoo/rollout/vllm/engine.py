"""Engines that decode outside of rlzoo: what is asked of them, and vLLM in this process."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlzoo.configuration.recorded import Recorded
from rlzoo.errors import UserError, first_line
from rlzoo.models.base import Policy
from rlzoo.models.moe.policy import MoEPolicy
from rlzoo.types import Prompt, SamplingParams

OLDEST, TOO_NEW = (0, 32), (0, 34)
"""The versions of vLLM whose interfaces these are."""
_OURS = {"model", "tokenizer", "logprobs_mode", "generation_config", "skip_tokenizer_init"}


@dataclass(frozen=True)
class Answer:
    """One sampled answer.

    Attributes:
        token_ids: The sampled ids, EOS included.
        log_probs: What the engine drew each of them with, in nats.
    """

    token_ids: Sequence[int]
    log_probs: Sequence[float]


class Engine(Recorded, ABC):
    """Decodes with a copy of the policy's weights."""

    @abstractmethod
    def check(self, policy: Policy, world_size: int) -> None:
        """Refuse what cannot work; nothing is loaded yet.

        Args:
            policy: The model, whose config can be read.
            world_size: Processes that train.

        Raises:
            UserError: Naming the setting and the remedy.
        """

    @abstractmethod
    def load(self, policy: Policy) -> None:
        """Take over the policy's weights and forget everything computed with earlier ones.

        Args:
            policy: With whole weights on this rank.

        Raises:
            UserError: If the engine does not take them.
        """

    @abstractmethod
    def answer(
        self, prompts: Sequence[Prompt], orders: Sequence[dict[str, Any]]
    ) -> list[list[Answer]]:
        """Draw answers.

        Args:
            prompts: Token ids.
            orders: From `order`, one per prompt.

        Returns:
            The answers of each prompt, as many as its order's ``n``.

        Raises:
            UserError: If the engine fails.
        """


def order(params: SamplingParams, n: int, seed: int, eos_ids: frozenset[int]) -> dict[str, Any]:
    """Say how one prompt is to be answered, in the words that vLLM has in Python and over HTTP.

    Everything is said, so that no default of a server or checkpoint remains.

    Args:
        params: Length, temperature and filters.
        n: Answers; answer i draws from the stream ``seed + i``.
        seed: Seed of the first.
        eos_ids: Ids that end an answer, and nothing else does.

    Returns:
        Fields of vLLM's SamplingParams.
    """
    return {
        "n": n,
        "seed": seed,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": params.max_new_tokens,
        "stop_token_ids": sorted(eos_ids),
        "ignore_eos": True,  # of the engine, which may know fewer
        "logprobs": 0,  # of the sampled token alone
    }


def check_version(owner: str, found: str) -> None:
    """Refuse versions of vLLM whose interfaces may differ.

    Args:
        owner: Whose message it is.
        found: As vLLM reports it, such as ``0.32.0+cpu``.

    Raises:
        UserError: Naming the versions that do.
    """
    parts = found.split(".")[:2]
    numbers = tuple(int(part) for part in parts if part.isdecimal())
    if not OLDEST <= numbers < TOO_NEW:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, TOO_NEW))
        raise UserError(f"{owner}: vLLM is {found}; use one from {oldest} and below {newest}")


def check_device(owner: str, policy: Policy, device: str) -> None:
    """Refuse models whose weights vLLM packs on CPU, and then does not take anew.

    Seen in vLLM 0.32: a head tied to the embeddings stays as it was, and experts come out wrong.

    Args:
        owner: Whose message it is.
        policy: The model.
        device: Where vLLM runs, such as ``cuda``.

    Raises:
        UserError: Naming the remedy.
    """
    if device != "cpu":
        return
    if isinstance(policy, MoEPolicy):
        raise UserError(
            f"{owner}: on CPU, vLLM does not take new weights into a mixture of experts; use a "
            "GPU, or NativeSampler"
        )
    if policy.source.pending_gguf():
        return
    if policy.source.hf_config.get_text_config().tie_word_embeddings:
        raise UserError(
            f"{owner}: on CPU, vLLM does not take new weights into a head that is tied to the "
            "embeddings; use a model with tie_word_embeddings false, or NativeSampler"
        )


class ColocatedVLLM(Engine):
    """vLLM started by this process, on the device that trains; one process only.

    Args:
        memory: Share of the device's memory for vLLM, its weights included.
        options: Further arguments of ``vllm.LLM``, such as
            ``{enforce_eager: true, max_model_len: 4096}``.
    """

    def __init__(self, memory: float = 0.3, options: dict[str, Any] | None = None) -> None:
        options = options or {}
        if not 0 < memory < 1:
            raise UserError(f"ColocatedVLLM: memory {memory} must be above 0 and below 1")
        if taken := sorted(_OURS & options.keys()):
            raise UserError(f"ColocatedVLLM: options.{taken[0]} is set by rlzoo; remove it")
        self.memory, self.options = memory, options
        self.llm: Any = None

    def check(self, policy: Policy, world_size: int) -> None:
        """Refuse several processes, and a vLLM that is missing or does not fit."""
        if world_size > 1:
            raise UserError(
                f"ColocatedVLLM: it serves one process, not {world_size}; use VLLMServer with one "
                "url per process"
            )
        try:
            import vllm
            from vllm.platforms import current_platform
        except Exception as error:  # what a wrong version of transformers raises, anything can be
            raise UserError(
                f"ColocatedVLLM: vllm cannot be imported ({first_line(error)}); install "
                "'rlzoo-lightning[vllm]' into an environment whose transformers it accepts, or "
                "use VLLMServer, which needs no vllm here"
            ) from error
        check_version("ColocatedVLLM", str(vllm.__version__))
        check_device("ColocatedVLLM", policy, str(current_platform.device_type))

    def load(self, policy: Policy) -> None:
        """Start vLLM, or have it read new weights; see `Engine.load`."""
        with tempfile.TemporaryDirectory(prefix="rlzoo-vllm-") as folder:
            policy.save_pretrained(folder)
            try:
                if self.llm is None:
                    self.llm = self._start(policy, folder)
                else:
                    self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
                    self.llm.reset_prefix_cache()
            except Exception as error:
                raise UserError(f"ColocatedVLLM: weights: {first_line(error)}") from error

    def _start(self, policy: Policy, folder: str) -> Any:
        import vllm

        settings = {"gpu_memory_utilization": self.memory, "dtype": policy.dtype, **self.options}
        return vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            logprobs_mode="processed_logprobs",
            generation_config="vllm",
            **settings,
        )

    def answer(
        self, prompts: Sequence[Prompt], orders: Sequence[dict[str, Any]]
    ) -> list[list[Answer]]:
        """Draw answers; see `Engine.answer`."""
        import vllm

        try:
            found = self.llm.generate(
                [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts],
                [vllm.SamplingParams(**given, detokenize=False) for given in orders],
                use_tqdm=False,
            )
        except Exception as error:
            raise UserError(f"ColocatedVLLM: {first_line(error)}") from error
        return [[_answer(one) for one in sorted(x.outputs, key=lambda o: o.index)] for x in found]


def _answer(output: Any) -> Answer:
    ids = [int(token) for token in output.token_ids]
    steps = zip(ids, output.logprobs, strict=True)
    return Answer(ids, [float(step[token].logprob) for token, step in steps])
