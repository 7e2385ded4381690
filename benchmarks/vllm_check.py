"""How closely a real vLLM follows a policy: its log-probs and greedy answers, before and after.

``--save FOLDER`` writes the small model that a server is to be started with, ``--url`` asks that
server, and without either vLLM runs in this process.
"""

from __future__ import annotations

import argparse

import torch

from rlzoo.models import DensePolicy
from rlzoo.rollout import ColocatedVLLM, Engine, NativeSampler, VLLMSampler, VLLMServer
from rlzoo.types import Prompt, Prompts, Rollouts, SamplingParams

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
TEXTS = ("1+2=", "abc", "12345678+9abcdef=", "0")
LENGTH, SAMPLES = 24, 6


def gap(policy: DensePolicy, rollouts: Rollouts, temperature: float) -> float:
    """Return the largest distance of a token's log-prob from the policy's own, in nats."""
    sequences = rollouts.sequences(torch.arange(len(rollouts)))
    with policy.generating():
        ours = policy.log_probs(sequences, temperature).log_probs
    theirs = rollouts.log_probs[:, : ours.shape[1]]
    return float((theirs - ours).abs()[sequences.mask].max())


def compare(policy: DensePolicy, sampler: VLLMSampler, when: str) -> None:
    """Print one line about vLLM against rlzoo with the policy's present weights."""
    rows = tuple(Prompt(tuple(policy.encode(text)), text) for text in TEXTS)
    prompts = Prompts(rows, (3, 0, 5, 7))
    gaps = []
    for temperature in (1.0, 0.6):
        params = SamplingParams(LENGTH, temperature=temperature)
        rollouts = sampler.sample(policy, prompts, SAMPLES, params, 1)
        gaps.append(gap(policy, rollouts, temperature))
    few = Prompts(rows[1:2], (0,))
    alone = sampler.sample(policy, few, SAMPLES, params, 1)
    same = torch.equal(alone.token_ids, rollouts.token_ids[SAMPLES : 2 * SAMPLES])
    greedy = SamplingParams(LENGTH, temperature=0)
    theirs = sampler.sample(policy, prompts, 1, greedy, 1).token_ids
    ours = NativeSampler().sample(policy, prompts, 1, greedy, 1).token_ids
    print(
        f"{when}: log-probs off by at most {gaps[0]:.1e} nats at temperature 1, {gaps[1]:.1e} at "
        f"0.6; a prompt alone is answered the same: {same}; greedy answers are NativeSampler's: "
        f"{torch.equal(ours, theirs)}"
    )


def main() -> None:
    """Compare, change every weight, and compare again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; by default vLLM runs in this process")
    parser.add_argument("--save", help="write the model to this folder and stop")
    args = parser.parse_args()
    policy = DensePolicy(config=CONFIG)
    policy.load()
    if args.save:
        policy.save_pretrained(args.save)
        return
    options = {"enforce_eager": True, "max_model_len": 128}
    engine: Engine = VLLMServer([args.url]) if args.url else ColocatedVLLM(0.1, options)
    sampler = VLLMSampler(engine)
    sampler.check(policy, 1, sharded=False)
    compare(policy, sampler, "new weights")
    torch.manual_seed(0)
    for parameter in policy.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.15)
    compare(policy, sampler, "after an update")


if __name__ == "__main__":
    main()
