"""Log-probabilities, against Hugging Face's own logits and against arithmetic by hand."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_models import DENSE, MOE

from rlzoo.errors import UserError
from rlzoo.models import log_probs as computing
from rlzoo.models.feeding.layout import padded, response_slots
from rlzoo.types import Sequences


def by_hand(policy, sequences, temperature=1.0):
    """Score row by row, unpadded, from the model's own full logits."""
    log_probs = torch.zeros(sequences.mask.shape)
    entropy = torch.zeros(sequences.mask.shape)
    for i, (ids, prompt) in enumerate(
        zip(sequences.input_ids, sequences.prompt_lengths, strict=True)
    ):
        end = int(prompt + sequences.mask[i].nonzero().max() + 1)
        logits = policy.causal_lm(input_ids=ids[None, :end]).logits[0].float() / temperature
        table = logits.log_softmax(-1)
        for t in sequences.mask[i].nonzero().flatten():
            row = table[prompt + t - 1]
            log_probs[i, t] = row[ids[prompt + t]]
            entropy[i, t] = -(row.exp() * row).sum()
    return log_probs, entropy


@pytest.mark.parametrize("family", [*DENSE, *MOE])
def test_scores_are_those_of_the_full_logits(tiny, sequences, family):
    """LP-05 too: gpt2 has absolute positions, and rows here are padded."""
    policy = tiny(family)
    with torch.no_grad():
        expected, entropy = by_hand(policy, sequences, temperature=0.7)
        predicted = policy.log_probs(sequences, temperature=0.7, entropy=True)
    assert expected.abs().max() > 1
    torch.testing.assert_close(predicted.log_probs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(predicted.entropy, entropy, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["gemma2", "cohere", "granite"])
def test_forgetting_a_logit_transform_would_show(tiny, sequences, monkeypatch, family):
    """The families above do change their logits: without the transform the scores differ."""
    policy = tiny(family)
    before = policy.log_probs(sequences).log_probs
    monkeypatch.setattr(
        "rlzoo.models.weights.logit_transform", lambda config: computing.LogitTransform()
    )
    assert (policy.log_probs(sequences).log_probs - before).abs().max() > 0.01


def test_an_unknown_logit_transform_is_refused_at_load(tiny, monkeypatch):
    monkeypatch.setattr(
        "rlzoo.models.weights.logit_transform", lambda config: computing.LogitTransform()
    )
    with pytest.raises(UserError, match="'cohere' changes its logits"):
        tiny("cohere")


def test_lp01_temperature_divides_the_logits():
    """LP-01: logits [2, 0], T = 0.5 -> -log(1 + exp(-4)) = -0.018150."""
    log_probs, _ = computing.token_log_probs(
        torch.zeros(1, 1), torch.tensor([0]), lambda h: torch.tensor([[2.0, 0.0]]), temperature=0.5
    )
    assert log_probs.item() == pytest.approx(-0.018150, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_lp02_temperature_zero_is_refused(tiny, sequences, temperature):
    with pytest.raises(UserError, match="temperature must be > 0 for rollouts"):
        tiny("qwen3").log_probs(sequences, temperature=temperature)


def test_lp07_two_scorings_are_equal_in_training_mode(tiny, sequences):
    """LP-07: dropout and router jitter asked for in the config are off."""
    noisy = {
        "gpt2": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
        "qwen3": {"attention_dropout": 0.3},
        "mixtral": {"router_jitter_noise": 0.3, "attention_dropout": 0.3},
    }
    for family, config in noisy.items():
        policy = tiny(family, config=config)
        policy.training_mode()
        assert policy.model.training
        first, second = (policy.log_probs(sequences).log_probs for _ in range(2))
        assert torch.equal(first, second), family


def test_training_mode_notices_dropout(tiny):
    policy = tiny("qwen3")
    policy.causal_lm.base_model.layers[0].self_attn.attention_dropout = 0.1
    with pytest.raises(AssertionError, match="attention_dropout"):
        policy.training_mode()


def test_lp08_bf16_logits_are_normalized_in_fp32(counter):
    """LP-08: equal bf16 logits over V = 151936 -> -log V = -11.93121; bf16 would say -11.9375."""
    policy = counter(151936, logit=0.0, dtype=torch.bfloat16)
    rows = Sequences(
        torch.tensor([[5, 6, 7]]), torch.tensor([1]), torch.ones(1, 2, dtype=torch.bool)
    )
    log_probs = policy.log_probs(rows).log_probs
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, torch.full((1, 2), -11.93121), atol=1e-4, rtol=0)


def test_lp08_autocast_keeps_the_normalizer_in_fp32(tiny, sequences):
    policy = tiny("qwen3")
    with torch.no_grad():
        full = policy.log_probs(sequences).log_probs
        with torch.autocast("cpu", dtype=torch.bfloat16):
            predicted = policy.log_probs(sequences)
            logits = policy._head(predicted.hidden)
            assert logits.dtype == torch.bfloat16
    rows, _, columns = response_slots(sequences)
    exact = logits.double().log_softmax(-1)
    exact = exact.gather(-1, sequences.input_ids[rows, columns][:, None]).squeeze(-1)
    found = predicted.log_probs[sequences.mask]
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=0)
    assert 0 < (predicted.log_probs - full).abs().max() < 0.3


def test_lp09_every_token_is_predicted_by_the_one_before(counter):
    """LP-09: P(next = cur + 1) = 1 -> 0 for the right continuation, its first token included."""
    policy = counter(20)
    rows = Sequences(
        torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0]]),
        torch.tensor([2, 1]),
        torch.ones(2, 2, dtype=torch.bool),
    )
    torch.testing.assert_close(policy.log_probs(rows).log_probs, torch.zeros(2, 2))
    wrong = replace(rows, prompt_lengths=rows.prompt_lengths, input_ids=rows.input_ids.flip(1))
    assert policy.log_probs(wrong).log_probs.max() < -50


@pytest.mark.parametrize("entropy", [False, True])
def test_mem01_chunks_change_nothing(tiny, sequences, monkeypatch, entropy):
    """MEM-01: chunked = unchunked to 1e-6, in value and in gradient."""
    policy = tiny("qwen3")
    vocabulary = len(policy.tokenizer)

    def run(chunk):
        monkeypatch.setattr(computing, "CHUNK_FLOATS", chunk * vocabulary)
        policy.zero_grad()
        predicted = policy.log_probs(sequences, temperature=0.8, entropy=entropy)
        weights = torch.linspace(-1, 1, predicted.log_probs.numel()).reshape(
            predicted.log_probs.shape
        )
        loss = (predicted.log_probs * weights).sum()
        loss = loss + (predicted.entropy * weights).sum() if entropy else loss
        loss.backward()
        return predicted.log_probs.detach(), [p.grad.clone() for p in policy.parameters()]

    (whole, gradients), (parts, chunked) = run(10_000), run(4)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=0)
    assert sum(g.abs().sum() for g in gradients) > 1
    for one, two in zip(gradients, chunked, strict=True):
        torch.testing.assert_close(two, one, atol=1e-6, rtol=1e-5)


def test_mem01_at_most_one_chunk_of_logits_is_alive():
    """MEM-01: nothing V wide is kept for backward, and no call of the head exceeds a chunk."""
    torch.manual_seed(0)
    head, calls, kept = torch.nn.Linear(8, 500), [], []

    def counted(hidden):
        calls.append(len(hidden))
        return head(hidden)

    def keep(tensor):
        kept.append(tuple(tensor.shape))
        return tensor

    hidden, targets = torch.randn(50, 8, requires_grad=True), torch.randint(0, 500, (50,))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        log_probs, _ = computing.token_log_probs(hidden, targets, counted, chunk=16)
    assert not [shape for shape in kept if shape[-1:] == (500,) and len(shape) > 1]
    log_probs.sum().backward()
    assert calls == [16, 16, 16, 2, *calls[4:]]
    assert len(calls) == 8, "each chunk is computed once forward and once in backward"


def test_mem01_prompt_positions_never_meet_the_head(tiny, sequences):
    policy = tiny("qwen3")
    seen = []
    policy.causal_lm.lm_head.register_forward_hook(lambda *call: seen.append(len(call[1][0])))
    policy.log_probs(sequences)
    assert sum(seen) == int(sequences.mask.sum())


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "mixtral"])
def test_eos03_the_tail_changes_nothing_before_it(tiny, sequences, family):
    """EOS-03: tokens after the mask, and wider padding, leave the scores as they are."""
    policy = tiny(family)
    before = policy.log_probs(sequences).log_probs
    junk = sequences.input_ids.clone()
    for row, end in enumerate((7, 6, 9)):
        junk[row, end:] = 13
    wide = torch.cat([junk, torch.full((3, 4), 9)], 1)
    after = policy.log_probs(replace(sequences, input_ids=wide)).log_probs
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    inside = junk.clone()
    inside[0, 3] = 2 if junk[0, 3] != 2 else 3
    changed = policy.log_probs(replace(sequences, input_ids=inside)).log_probs
    assert (changed - before)[0].abs().max() > 1e-3


def test_a_batch_without_response_tokens_scores_zero_and_has_gradients(tiny, sequences):
    policy = tiny("qwen3")
    empty = replace(sequences, mask=torch.zeros_like(sequences.mask))
    predicted = policy.log_probs(empty, entropy=True)
    predicted.log_probs.sum().backward()
    assert predicted.log_probs.eq(0).all()
    assert all(p.grad is not None and p.grad.eq(0).all() for p in policy.parameters())


def test_hidden_predicts_the_log_probs(tiny, sequences):
    """A critic reads `hidden`: the head on it gives back the log-probs, in row-major order."""
    policy = tiny("qwen3")
    predicted = policy.log_probs(sequences)
    rows, slots, columns = response_slots(sequences)
    table = policy._head(predicted.hidden).log_softmax(-1)
    again = table.gather(-1, sequences.input_ids[rows, columns][:, None]).squeeze(-1)
    torch.testing.assert_close(again, predicted.log_probs[rows, slots])


def test_entropy_of_a_banned_token_is_finite():
    head = lambda h: torch.tensor([[0.0, 0.0, -math.inf]])  # noqa: E731
    _, entropy = computing.token_log_probs(torch.zeros(1, 1), torch.tensor([0]), head, entropy=True)
    assert entropy.item() == pytest.approx(math.log(2))


def test_a_layout_gives_back_what_it_collects(sequences):
    """By row and column, whatever is fed; nothing stands where a token predicts nothing."""
    layout = padded(sequences)
    rows, columns = sequences.input_ids.shape
    names = torch.arange(rows)[:, None] * 1000 + torch.arange(columns)
    scattered = layout.scatter(layout.collect(names))
    ends = [
        int(p + m.nonzero().max())
        for p, m in zip(sequences.prompt_lengths, sequences.mask, strict=True)
    ]
    for i, end in enumerate(ends):
        torch.testing.assert_close(scattered[i, :end], names[i, :end])
        assert not scattered[i, end:].any()
    assert int(layout.real.sum()) == sum(ends)
    fed = layout.collect(sequences.input_ids)
    torch.testing.assert_close(fed[layout.real], layout.input_ids.flatten()[layout.real])
