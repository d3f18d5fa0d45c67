"""FlashAttention-2's functions, with its names, argument orders, defaults and returns, computed by tilewise.

Tensors are [batch, seqlen, heads, head_dim], or [total, heads, head_dim] with cu_seqlens. Bottom-right causal, inclusive
windows and natural-log LSE are the same here and there; the dropout mask of a seed is not. On the CPU
backward is deterministic in any case. tilewise.install_as_flash_attn() puts these where `import flash_attn` finds them.
"""

from ._arguments import flag, number
from ._flash_cache import attend, lengths_of, longest, over_cache, unpacked
from ._flash_gradients import gradients
from ._flash_probabilities import signed_probabilities
from .torch import torch

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """q [B, Sq, Hq, D], k and v [B, Skv, Hkv, D]. Returns o, or with return_attn_probs (o, lse [B, Hq, Sq], probabilities).

    The probabilities are an empty tensor without dropout, as in flash_attn. With it they are [B, Hq, Sq, Skv], negative where
    dropped and 1 for the largest of a row, as flash_attn's: dense, for tests alone.

    >>> import torch
    >>> q = torch.randn(1, 3, 2, 8)
    >>> o, lse, _ = flash_attn_func(q, q, q, causal=True, return_attn_probs=True)
    >>> o.shape, lse.shape
    (torch.Size([1, 3, 2, 8]), torch.Size([1, 2, 3]))
    """
    return call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """kv [B, Skv, 2, Hkv, D]: k and v in one tensor. Else flash_attn_func."""
    k, v = unpacked("kv", kv, False, 2)
    return call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """qkv [B, S, 3, H, D]. Else flash_attn_func."""
    q, k, v = unpacked("qkv", qkv, False, 3)
    return call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """q [total_q, Hq, D], k and v [total_k, Hkv, D]; cu_seqlens int32 [B + 1]; lse [Hq, total_q].

    With block_table [B, pages] k and v are pages [num_pages, page_size, Hkv, D], and cu_seqlens_k gives the lengths; no
    gradient.
    """
    if block_table is None:
        keys = {"cu_seqlens_kv": cu_seqlens_k, "seqlen_kv": longest("max_seqlen_k", max_seqlen_k)}
    else:
        keys = {"kv_lengths": lengths_of("cu_seqlens_k", cu_seqlens_k), "page_table": block_table}
    return call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                return_attn_probs, cu_seqlens_q=cu_seqlens_q, seqlen_q=longest("max_seqlen_q", max_seqlen_q), **keys)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                                    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                                    deterministic=False, return_attn_probs=False):
    """kv [total_k, 2, Hkv, D]. Else flash_attn_varlen_func."""
    k, v = unpacked("kv", kv, True, 2)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                                  causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                     window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False):
    """qkv [total, 3, H, D]. Else flash_attn_varlen_func."""
    q, k, v = unpacked("qkv", qkv, True, 3)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal,
                                  window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False):
    """q [B, Sq, Hq, D] over caches [B, Smax, Hkv, D], of which cache_seqlens (a number, or [B]) rows are filled.

    k and v [B, Snew, Hkv, D] are first written behind them, in place; with rotary_cos and rotary_sin [rows, R / 2] k is rotated
    before, and q: row by row where causal or windowed, else all rows at the first new position. With block_table [B, pages] the
    caches are pages [num_pages, page_size, Hkv, D] of any size; with cache_batch_idx [B] those sequences of larger caches are
    used. Where anything is refused nothing is written. No gradient.
    """
    return over_cache("block_table", q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
                      block_table, rotary_interleaved, cache_leftpad, return_softmax_lse, causal, window_size, softmax_scale,
                      softcap, alibi_slopes=alibi_slopes)


NAMES = {"cu_seqlens_kv": "cu_seqlens_k", "seqlen_q": "max_seqlen_q", "seqlen_kv": "max_seqlen_k", "page_table": "block_table",
         "kv_lengths": "cu_seqlens_k"}


def drawn(q, dropout_p):
    """What decides the dropout mask, int64 [2] or None, and dropout_p as a number."""
    dropout_p = number("dropout_p", dropout_p, float, "a number in [0, 1)")
    if not dropout_p or not isinstance(q, torch.Tensor):  # which attention() refuses
        return None, dropout_p
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=q.device), dropout_p


def call(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
         **packed):
    options = dict(packed, causal=causal, window_size=window_size, softmax_scale=softmax_scale, softcap=softcap,
                   alibi_slopes=alibi_slopes)
    return_attn_probs = flag("return_attn_probs", return_attn_probs)
    state, dropout_p = drawn(q, dropout_p)
    result = attend(NAMES, q, k, v, dropout_p=dropout_p, dropout_state=state, deterministic=deterministic,
                    return_lse=return_attn_probs, **options)
    if not return_attn_probs:
        return result
    return *result, signed_probabilities(q, k, dropout_p, state, options) if dropout_p else q.new_empty(0)


# What sequence parallelism and others' own autograd call: a forward's softmax_lse, or that of several merged, goes into the backward.

BELOW = {**NAMES, "kv_lengths": "seqused_k", "kv_starts": "leftpad_k"}


@torch.no_grad()
def without_autograd(q, k, v, dropout_p, return_softmax, options):
    """(o, lse, P under dropout or an empty tensor, rng_state int64 [2]: what its mask comes from)."""
    state, dropout_p = drawn(q, dropout_p)
    if return_softmax and not dropout_p:
        raise ValueError("return_softmax is True without dropout_p; accepted: with dropout, as in flash_attn")
    o, lse = attend(BELOW, q, k, v, dropout_p=dropout_p, dropout_state=state, return_lse=True, **options)
    p = signed_probabilities(q, k, dropout_p, state, options) if return_softmax else q.new_empty(0)
    return o, lse, p, q.new_empty(2, dtype=torch.int64) if state is None else state


def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
                        return_softmax):
    return without_autograd(q, k, v, dropout_p, return_softmax, {
        "causal": causal, "window_size": (window_size_left, window_size_right), "softmax_scale": softmax_scale, "softcap": softcap,
        "alibi_slopes": alibi_slopes})


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
                               window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
                               block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False):
    keys = {"kv_starts": leftpad_k, "kv_lengths": seqused_k, "cu_seqlens_q": cu_seqlens_q,
            "seqlen_q": longest("max_seqlen_q", max_seqlen_q)}
    if block_table is None:
        keys |= {"cu_seqlens_kv": cu_seqlens_k, "seqlen_kv": longest("max_seqlen_k", max_seqlen_k)}
    else:
        keys |= {"page_table": block_table, "kv_lengths": lengths_of("cu_seqlens_k", cu_seqlens_k) if seqused_k is None else seqused_k}
    o, lse, p, state = without_autograd(q, k, v, dropout_p, return_softmax, {
        "causal": causal, "window_size": (window_size_left, window_size_right), "softmax_scale": softmax_scale, "softcap": softcap,
        "alibi_slopes": alibi_slopes, **keys})
    if zero_tensors:
        beyond = torch.arange(len(o), device=o.device) >= cu_seqlens_q[-1]
        o.masked_fill_(beyond[:, None, None], 0)
        lse.masked_fill_(beyond, -torch.inf)
    return o, lse, p, state


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
                         window_size_right, softcap, alibi_slopes, deterministic, rng_state=None):
    return gradients(dout, q, k, v, out, softmax_lse, {"dq": dq, "dk": dk, "dv": dv}, causal, (window_size_left, window_size_right),
                     softmax_scale, softcap, deterministic, dropout_p, rng_state, alibi_slopes=alibi_slopes)


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
                                deterministic, rng_state=None, zero_tensors=False):
    return gradients(dout, q, k, v, out, softmax_lse, {"dq": dq, "dk": dk, "dv": dv}, causal, (window_size_left, window_size_right),
                     softmax_scale, softcap, deterministic, dropout_p, rng_state,
                     (longest("max_seqlen_q", max_seqlen_q), longest("max_seqlen_k", max_seqlen_k)),
                     zero_tensors, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, alibi_slopes=alibi_slopes)
