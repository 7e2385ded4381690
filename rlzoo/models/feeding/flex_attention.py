"""Sequences in one line through PyTorch's FlexAttention, which leaves out blocks nobody sees.

An alternative to the gathers of `dense_attention` for GPUs, chosen by the policy's
``attention: flex_attention``; it has a backward pass on CUDA only.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlzoo.models.feeding.layout import Layout

NAME = "flex_attention"


def block_mask(layout: Layout) -> Any:
    """Say which fed token sees which, in the form that FlexAttention and transformers take.

    A token sees those of its own prompt and answer up to itself:
    ``prompt_q == prompt_k and place_k <= place_q and answer_k in (none, answer_q)``.

    Args:
        layout: Sequences in one line.

    Returns:
        A BlockMask of l x l.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    assert layout.answers is not None
    answer, place, fed = layout.answers, layout.columns, layout.input_ids.shape[1]
    prompt = layout.source[layout.rows, 0]

    def sees(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = (prompt[query] == prompt[key]) & (place[key] <= place[query])
        return near & ((answer[key] == -1) | (answer[key] == answer[query]))

    on_gpu = fed and answer.is_cuda
    return create_block_mask(sees, None, None, fed, fed, answer.device, _compile=bool(on_gpu))
