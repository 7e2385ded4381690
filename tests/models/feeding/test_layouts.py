"""Sequences in one line that share their prompts, against plain padded rows."""

import copy

import pytest
import torch
from tiny_models import DENSE, MOE, build
from torch.nn.attention.flex_attention import flex_attention as attend
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rlzoo.algorithms import discover
from rlzoo.errors import UserError
from rlzoo.models import SeparateCritic
from rlzoo.models.feeding import dense_attention, feeds, flash_attention, flex_attention
from rlzoo.models.feeding.feeds import PaddedFeed, SharedFeed
from rlzoo.models.feeding.layout import padded, shared
from rlzoo.objective.loss import KLPenalty, policy_loss
from rlzoo.ops import Denominators
from rlzoo.training.minibatches import Load
from rlzoo.types import PolicyBatch, Sequences

EXACT = [name for name in (*DENSE, *MOE) if name not in ("gemma2", "qwen3_5_moe")]


@pytest.fixture(scope="module")
def groups():
    """Four prompts, the first two of equal length: 3, 1, 2 and 1 answers; ragged, one empty, one
    with a hole, one of a single token, and rows of the same prompt that do not stand together."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4, 4, 4, 4, 7, 3, 7])
    answers = torch.tensor([3, 6, 1, 5, 7, 0, 2])
    ids = torch.randint(2, 19, (7, 14), generator=generator)
    ids[1, :4] = ids[2, :4] = ids[0, :4]
    ids[6, :7] = ids[4, :7]
    mask = torch.arange(7) < answers[:, None]
    mask[4, 2] = False
    return Sequences(ids, lengths, mask)


def scored(policy, sequences, feed, entropy=False):
    """Log-probs, entropy and gradients of a weighted sum of them."""
    policy._feed = feed
    policy.zero_grad()
    predicted = policy.log_probs(sequences, 0.7, entropy)
    weights = torch.linspace(-1, 1, predicted.log_probs.numel()).view_as(predicted.log_probs)
    loss = (predicted.log_probs * weights).sum()
    loss = loss + (predicted.entropy * weights).sum() if entropy else loss
    loss.backward()
    return predicted, {
        n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None
    }


def agree(ours, theirs):
    torch.testing.assert_close(ours[0].log_probs, theirs[0].log_probs, atol=1e-5, rtol=0)
    assert ours[0].log_probs.abs().max() > 1
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        assert (ours[1][name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7, name


@pytest.mark.parametrize("family", EXACT)
def test_sharing_prompts_changes_no_number(family, groups, monkeypatch):
    """Every family, whether segments share calls, go one by one, or attend as whole rows."""
    policy = build(family)
    policy.log_probs(groups)
    assert isinstance(policy.feed, SharedFeed)
    plain = scored(policy, groups, PaddedFeed())
    for price, limit in ((2**20, 2**22), (1, 2**22), (2**20, 0)):
        monkeypatch.setitem(dense_attention._CALL_PAIRS, "cpu", price)
        monkeypatch.setattr(dense_attention, "_MASK_LIMIT", limit)
        agree(scored(policy, groups, SharedFeed(32)), plain)


def test_a_token_is_fed_once(groups):
    layout = shared(groups, dense_attention.Pieces(32))
    assert layout.input_ids.shape == (1, 4 + 4 + 7 + 3 + (2 + 5 + 0) + 4 + (6 + 1))
    assert padded(groups).input_ids.numel() == 7 * 13
    places = torch.arange(14).expand(7, -1)
    scattered = layout.scatter(layout.collect(places * 100 + groups.input_ids))
    ends = (torch.arange(1, 8) * groups.mask).amax(-1)
    fed = places < (groups.prompt_lengths + ends - 1)[:, None]
    assert torch.equal(layout.source >= 0, fed)
    assert torch.equal(scattered, torch.where(fed, places * 100 + groups.input_ids, 0))
    assert layout.real.sum() == layout.real.numel() - 1  # the last of a prompt without answers


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_checkpointing_and_entropy_take_the_same_way(family, groups):
    policy = build(family, gradient_checkpointing=True)
    policy.training_mode()
    policy.log_probs(groups)
    assert isinstance(policy.feed, SharedFeed)
    plain = scored(policy, groups, PaddedFeed(), entropy=True)
    ours = scored(policy, groups, SharedFeed(32), entropy=True)
    agree(ours, plain)
    torch.testing.assert_close(ours[0].entropy, plain[0].entropy, atol=1e-5, rtol=0)


def test_copies_and_critics_take_the_same_way(groups):
    """A copy made before the first score, and the trunk of a critic, share prompts too."""
    policy = build("llama")
    critic = SeparateCritic()
    critic.build(policy)
    torch.nn.init.ones_(critic.head.weight)
    frozen = policy.frozen_copy()
    seen = []
    for trunk in (frozen.causal_lm.base_model, critic.trunk):
        trunk.register_forward_pre_hook(lambda *call: seen.append(call[2]), with_kwargs=True)
    hidden = policy.log_probs(groups).hidden
    values = critic.values(groups, hidden)
    frozen.log_probs(groups)
    assert all(call.get("segments") is not None for call in (seen[0], seen[-1]))
    policy._feed = PaddedFeed()
    torch.testing.assert_close(critic.values(groups, hidden), values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("gemma2", {}, "padded, because its attention is eager"),
        ("qwen3_5_moe", {}, "padded, because it has layers of type linear_attention"),
        ("llama", {"attention": "eager"}, "padded, because its attention is eager"),
        ("llama", {"layout": "padded"}, "padded, because the setting says so"),
        ("mixtral", {"config": {"sliding_window": 6}}, "padded, because its window is 6 tokens"),
        ("mixtral", {"config": {"sliding_window": 13}}, "rows over 13 tokens are padded"),
        ("qwen3", {}, "no padding, and each prompt once"),
    ],
)
def test_what_is_fed_is_said_once(family, settings, reason, groups, caplog):
    policy = build(family, **settings)
    with caplog.at_level("INFO", logger="rlzoo"):
        policy.log_probs(groups)
        policy.log_probs(groups)
    (line,) = [record.message for record in caplog.records if record.message.startswith("layout")]
    assert reason in line


def test_an_attention_that_is_wrong_is_noticed(groups, monkeypatch):
    policy = build("qwen3")
    monkeypatch.setattr(
        dense_attention, "_seen", lambda n, before, own: torch.ones(1, 1, own, before + own).bool()
    )
    dense_attention.register()
    feed, why = feeds.choose(policy.causal_lm.base_model, "auto")
    assert isinstance(feed, PaddedFeed)
    assert "without padding its states differ by" in why


def test_autocast_is_allowed_its_own_rounding(monkeypatch):
    """Kernels of half precision differ by more than those of float32, whatever the weights are."""
    call = dense_attention._call
    monkeypatch.setattr(dense_attention, "_call", lambda *args: call(*args) * 1.003)
    trunk = build("qwen3").causal_lm.base_model
    assert "states differ by" in feeds.choose(trunk, "auto")[1]
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(feeds.choose(trunk, "auto")[0], SharedFeed)
        monkeypatch.setattr(dense_attention, "_call", lambda *args: call(*args) * 1.5)
        assert "states differ by" in feeds.choose(trunk, "auto")[1]


def test_a_decoder_that_was_not_prepared_is_not_fed_a_line(groups):
    policy = build("qwen3", layout="padded")
    policy._feed = SharedFeed(32)
    with pytest.raises(RuntimeError, match="not prepared"):
        policy.log_probs(groups)


def test_an_unknown_layout_is_refused():
    with pytest.raises(UserError, match="layout 'packed' is unknown; use auto or padded"):
        build("qwen3", layout="packed")


def test_beyond_its_window_rows_are_padded_and_counted_so(groups):
    feed, load = SharedFeed(32, window=13), Load(2, 14, 9, {0: 7})
    assert feed.layout(groups).segments is None
    assert SharedFeed(32, window=14).layout(groups).segments is not None
    assert (feed.tokens(load), SharedFeed(32).tokens(load)) == (28, 16)


@pytest.mark.parametrize("name", sorted(discover()))
def test_every_objective_has_the_same_gradient_either_way(name, groups):
    """A whole update, from tokens to the gradients of the weights."""
    policy, rng = build("qwen3"), torch.Generator().manual_seed(1)
    algorithm = discover()[name]()
    old = policy.log_probs(groups).log_probs.detach()
    old = old + 0.2 * torch.randn(old.shape, generator=rng) * groups.mask
    advantages = torch.randn((7, 1), generator=rng).expand_as(old)
    found = []
    for feed in (PaddedFeed(), SharedFeed(32)):
        policy._feed = feed
        policy.zero_grad()
        predicted = policy.log_probs(groups, entropy=True)
        batch = PolicyBatch(
            log_probs=predicted.log_probs,
            old_log_probs=old,
            advantages=advantages,
            mask=groups.mask,
            rollout_log_probs=old,
            ref_log_probs=old - 0.1,
            entropy=predicted.entropy,
            group_ids=torch.tensor([0, 0, 0, 1, 2, 3, 2]),
            token_ids=groups.input_ids[:, 7:],
        )
        counts = Denominators.count(batch.mask, batch.group_ids)
        loss, _ = policy_loss(algorithm, batch, counts, length=7, kl=KLPenalty(0.05))
        loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in policy.parameters()]))
    (plain, before), (ours, after) = found
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    for one, two in zip(after, before, strict=True):
        assert (one - two).norm() <= 1e-4 * two.norm() + 1e-6


def test_rows_change_nothing_for_each_other(groups):
    """What a row scores does not depend on who else is in the line."""
    policy = build("llama")
    whole = policy.log_probs(groups).log_probs
    for row in range(7):
        one = slice(row, row + 1)
        alone = Sequences(groups.input_ids[one], groups.prompt_lengths[one], groups.mask[one])
        torch.testing.assert_close(
            policy.log_probs(alone).log_probs[0], whole[row], atol=1e-5, rtol=0
        )
    junk = copy.deepcopy(groups)
    ends = groups.prompt_lengths + (torch.arange(1, 8) * groups.mask).amax(-1)
    junk.input_ids[torch.arange(14) >= ends[:, None]] = 5
    after = policy.log_probs(junk).log_probs
    torch.testing.assert_close(after, whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_flex_attention_sees_what_the_gathers_see(family, groups, monkeypatch):
    """The mask of GPUs, uncompiled: log-probs and gradients of padded rows."""
    monkeypatch.setattr(
        "transformers.integrations.flex_attention.WrappedFlexAttention",
        lambda training: lambda: attend,
    )
    policy = build(family)
    policy.log_probs(groups)
    plain = scored(policy, groups, PaddedFeed())
    policy.causal_lm.base_model.config._attn_implementation = flex_attention.NAME
    policy._feed = None
    with pytest.raises(UserError, match="no backward pass on CPU"):
        policy.log_probs(groups)
    # PyTorch refuses it before it tries; its formula for it runs anywhere.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    agree(scored(policy, groups, SharedFeed(32)), plain)


def ragged_attention(
    query, key, value, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa
):
    """Stands for the CUDA kernel: what PyTorch's documentation says of it, piece by piece."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert window_size == (-1, 0)
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert (max_q, max_k) == (int(cu_q.diff().max()), int(cu_k.diff().max()))
    assert (int(cu_q[-1]), int(cu_k[-1])) == (len(query), len(key))
    found = []
    for q0, q1, k0, k1 in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        asked, given = int(q1 - q0), int(k1 - k0)
        seen = torch.ones(asked, given, dtype=torch.bool).tril(given - asked)
        one = (states.transpose(0, 1)[None] for states in (query[q0:q1], key[k0:k1], value[k0:k1]))
        out = scaled_dot_product_attention(*one, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
        found.append(out[0].transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def flash(monkeypatch):
    """A policy whose attention is FlashAttention, in float32 on a CPU."""
    calls = []

    def padded_call(module, query, key, value, attention_mask, scaling=None, **_):
        assert attention_mask is None
        calls.append("padded")
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling)

    def ragged_call(*args, **kwargs):
        calls.append("ragged")
        return ragged_attention(*args, **kwargs)

    kernel = "transformers.integrations.flash_attention.flash_attention_forward"
    monkeypatch.setattr(kernel, padded_call)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", ragged_call)

    def make(family):
        policy = build(family)
        trunk = policy.causal_lm.base_model
        trunk.config._attn_implementation = flash_attention.NAME
        feeds.take_segments(trunk)
        return policy, calls

    return make


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "mixtral"])
def test_flash_attention_takes_the_line_without_padding(family, groups, flash):
    """Log-probs and gradients of padded rows; no query or key is fed twice but prompts' keys."""
    policy, calls = flash(family)
    policy.log_probs(groups)
    assert isinstance(policy.feed, SharedFeed)
    assert policy.feed.pieces is flash_attention.RaggedPieces
    plain = scored(policy, groups, PaddedFeed())
    calls.clear()
    agree(scored(policy, groups, SharedFeed(32, pieces=flash_attention.RaggedPieces)), plain)
    assert set(calls) == {"ragged"}
    segments = shared(groups, flash_attention.RaggedPieces(32)).segments
    fed = 4 + 4 + 7 + 3 + (2 + 5 + 0) + 4 + (6 + 1)
    assert sorted(segments.queries.tolist()) == list(range(fed))


def test_a_kernel_that_sees_other_keys_is_noticed(groups, flash, monkeypatch, caplog):
    policy, _ = flash("qwen3")

    def top_left(query, key, value, cu_q, cu_k, *sizes, **kwargs):
        out = ragged_attention(query, key, value, cu_q, cu_k, *sizes, **kwargs)
        return out.roll(1, 0)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", top_left)
    with caplog.at_level("INFO", logger="rlzoo"):
        policy.log_probs(groups)
    assert isinstance(policy.feed, PaddedFeed)
    assert "without padding its states differ by" in caplog.text


def test_without_a_gpu_flash_attention_is_padded(monkeypatch):
    """PyTorch's kernel refuses a CPU, and the reason is said."""
    policy = build("qwen3")
    trunk = policy.causal_lm.base_model
    feed = SharedFeed(32, pieces=flash_attention.RaggedPieces)
    kernel = "transformers.integrations.flash_attention.flash_attention_forward"
    monkeypatch.setattr(kernel, sdpa_attention_forward)
    trunk.config._attn_implementation = flash_attention.NAME
    feeds.take_segments(trunk)
    assert feeds.difference(trunk, feed)
