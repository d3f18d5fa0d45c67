"""flash_attn.bert_padding's functions: rows of padded batches packed, and put back. Plain indexing; autograd follows."""

from ._pytorch import torch


def index_first_axis(x, indices):
    """x [rows, ...], indices [n]: [n, ...]."""
    return x[indices]


def index_put_first_axis(values, indices, first_axis_dim):
    """values [n, ...] at `indices` of zeros [first_axis_dim, ...]."""
    out = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return out.index_put((indices,), values)


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """[B, S, ...] and a mask [B, S], 1 = a row in use: (packed [total, ...], indices, cu_seqlens int32, longest, used [B]).

    `unused_mask` rows are kept in the packing though not in use, as memory that is reserved.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, int(lengths.max()) if len(lengths) else 0, used


def pad_input(hidden_states, indices, batch, seqlen):
    """[total, ...] back to [batch, seqlen, ...], zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """[B, S, ...] of rows in which several sequences follow each other, their lengths anywhere in attention_mask_in_length [B, S],
    zeros elsewhere: (packed [total, ...], indices, cu_seqlens int32 of all of them, the longest)."""
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    used = torch.arange(attention_mask_in_length.shape[1], device=lengths.device) < attention_mask_in_length.sum(-1, keepdim=True)
    indices = torch.nonzero(used.flatten(), as_tuple=False).flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, int(lengths.max()) if len(lengths) else 0
