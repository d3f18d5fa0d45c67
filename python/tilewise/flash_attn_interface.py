"""FlashAttention-3's functions, with its names, argument orders, defaults and returns, computed by tilewise.

They differ from version 2's in the order of their arguments and in having no dropout. num_splits, pack_gqa, sm_margin and
scheduler_metadata steer that library's kernels and change no result; here they change nothing.
"""

from ._attention import merge
from ._flash_cache import NAMES, attend, descales, longest, over_cache, unpacked, unserved
from ._flash_gradients import gradients
from ._frameworks import describe
from ._torch_arguments import int32, whole
from .torch import torch

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_with_kvcache", "get_scheduler_metadata"]
RENAMED = {**NAMES, "k": "k", "v": "v", "cu_seqlens_kv": "cu_seqlens_k", "seqlen_q": "max_seqlen_q", "seqlen_kv": "max_seqlen_k",
           "kv_lengths": "seqused_k", "q_lengths": "seqused_q", "kv_starts": "leftpad_k", "return_lse": "return_attn_probs"}


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
                    sm_margin=0, return_attn_probs=False):
    """q [B, Sq, Hq, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv]. Returns o, or (o, lse [B, Hq, Sq]).

    k and v may be float8_e4m3fn with q in 16 bits or fp32; k_descale and v_descale [B, Hkv] are then their scales. No gradient.
    """
    unserved(qv=qv, q_descale=q_descale, attention_chunk=attention_chunk or None)
    return attend(RENAMED, q, k, v, causal=causal, window_size=window_size, softmax_scale=softmax_scale, softcap=softcap,
                  deterministic=deterministic, return_lse=return_attn_probs, **descales(k, k_descale, v_descale))


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
                              window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None,
                              sm_margin=0, return_attn_probs=False):
    """qkv [B, S, 3, H, D], or [B, S, Hq + 2 Hkv, D] with num_heads_q. Else flash_attn_func."""
    if not isinstance(qkv, torch.Tensor) or qkv.is_nested or qkv.dim() != 4:
        q, k, v = unpacked("qkv", qkv, False, 3)
    else:
        heads, heads_q = qkv.shape[2], 0 if num_heads_q is None else whole("num_heads_q", num_heads_q)
        heads_kv = (heads - heads_q) // 2
        if not 0 < heads_q < heads or heads_q + 2 * heads_kv != heads:
            raise ValueError(f"qkv is {describe(qkv)} and num_heads_q {num_heads_q}; accepted: [batch, seqlen, num_heads_q + 2 heads_kv, "
                             "head_dim], or [batch, seqlen, 3, heads, head_dim] without num_heads_q")
        q, k, v = qkv.split([heads_q, heads_kv, heads_kv], dim=2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
                           attention_chunk, softcap, deterministic=deterministic, return_attn_probs=return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None,
                           softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                           window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                           deterministic=False, sm_margin=0, return_attn_probs=False):
    """q [total_q, Hq, D], k and v [total_k, Hkv, D]; cu_seqlens int32 [B + 1]; seqused int32 [B]: rows in use of each."""
    unserved(qv=qv, q_descale=q_descale, attention_chunk=attention_chunk or None)
    return attend(RENAMED, q, k, v, causal=causal, window_size=window_size, softmax_scale=softmax_scale, softcap=softcap,
                  cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqlen_q=longest("max_seqlen_q", max_seqlen_q),
                  seqlen_kv=longest("max_seqlen_k", max_seqlen_k), q_lengths=int32("seqused_q", seqused_q),
                  kv_lengths=int32("seqused_k", seqused_k), deterministic=deterministic, return_lse=return_attn_probs,
                  **descales(k, k_descale, v_descale, cu_seqlens_k))


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
                            cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
                            cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
                            q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
                            scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False):
    """As tilewise.flash_attn's, with this version's order; q may be packed, [total_q, Hq, D] with cu_seqlens_q, if not rotated.

    Caches may be float8_e4m3fn, k_descale and v_descale [B, Hkv] their scales where no page_table or cache_batch_idx is given; k and
    v, in 16 bits or fp32, are divided by them and rounded. With return_softmax_lse: (o, lse, two empty tensors), as keys are
    never split where the caller sees it.
    """
    unserved(qv=qv, cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens, q_descale=q_descale,
             attention_chunk=attention_chunk or None)
    blocks = not (page_table is cache_batch_idx is None)
    result = over_cache("page_table", q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
                        page_table, rotary_interleaved, cache_leftpad, return_softmax_lse, causal, window_size, softmax_scale,
                        softcap, longest("max_seqlen_q", max_seqlen_q), cu_seqlens_q=cu_seqlens_q,
                        **descales(k_cache, k_descale, v_descale, blocks=blocks))
    return (*result, q.new_empty(0, dtype=torch.float32), q.new_empty(0, dtype=torch.float32)) if return_softmax_lse else result


def flash_attn_combine(out_partial, lse_partial, out=None, out_dtype=None):
    """Attention over parts of the keys, out_partial fp32 [parts, B, Sq, H, Dv] and lse_partial fp32 [parts, B, Sq, H], as one.

    Returns o [B, Sq, H, Dv] in out_dtype (None: fp32), written to `out` where given, and lse fp32 [B, Sq, H]. No gradient.
    """
    for name, x, rank in (("out_partial", out_partial, 5), ("lse_partial", lse_partial, 4)):
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float32 or x.dim() != rank or x.shape[:4] != out_partial.shape[:4]:
            raise ValueError(f"{name} is {describe(x)}; accepted: fp32 [parts, batch, seqlen, heads, head_dim] and [parts, batch, "
                             "seqlen, heads]")
    with torch.no_grad():
        o = torch.zeros_like(out_partial[0], memory_format=torch.contiguous_format)
        lse = lse_partial.new_full(lse_partial[0].transpose(1, 2).shape, -torch.inf)
        for part, part_lse in zip(out_partial, lse_partial):
            merge(o, lse, part.detach().contiguous(), part_lse.detach().transpose(1, 2).contiguous())
        if out is None:
            out = o.to(out_dtype or torch.float32)
        elif out.shape != o.shape or out_dtype not in (None, out.dtype):
            raise ValueError(f"out is {describe(out)}; accepted: {list(o.shape)} in {out_dtype or 'fp32 or 16 bits'}")
        else:
            out.copy_(o)
    return out, lse.transpose(1, 2)


def get_scheduler_metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
                           qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None,
                           page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0,
                           has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0):
    """int32 [1] on cache_seqlens' device: tilewise plans by itself, and scheduler_metadata=, of any value, changes nothing."""
    return torch.zeros(1, dtype=torch.int32, device=cache_seqlens.device)


def _flash_attn_forward(q, k, v, k_new=None, v_new=None, qv=None, out_=None, cu_seqlens_q=None, cu_seqlens_k=None,
                        cu_seqlens_k_new=None, seqused_q=None, seqused_k=None, max_seqlen_q=None, max_seqlen_k=None,
                        page_table=None, kv_batch_idx=None, leftpad_k=None, rotary_cos=None, rotary_sin=None,
                        seqlens_rotary=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
                        causal=False, window_size_left=-1, window_size_right=-1, attention_chunk=0, softcap=0.0,
                        rotary_interleaved=True, scheduler_metadata=None, num_splits=1, pack_gqa=None, sm_margin=0):
    """(o, lse, two empty tensors)."""
    unserved(qv=qv, q_descale=q_descale, cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=seqlens_rotary,
             attention_chunk=attention_chunk or None)
    window = window_size_left, window_size_right
    if cu_seqlens_k is None:
        blocks = not (page_table is kv_batch_idx is None)
        o, lse = over_cache("page_table", q, k, v, k_new, v_new, rotary_cos, rotary_sin, seqused_k, kv_batch_idx, page_table,
                            rotary_interleaved, leftpad_k, True, causal, window, softmax_scale, softcap,
                            longest("max_seqlen_q", max_seqlen_q),
                            cu_seqlens_q=cu_seqlens_q, q_lengths=int32("seqused_q", seqused_q),
                            **descales(k, k_descale, v_descale, blocks=blocks))
    else:
        if not (k_new is page_table is kv_batch_idx is None):
            raise ValueError("cu_seqlens_k comes with k_new, page_table or kv_batch_idx; accepted: packed keys, or a cache with seqused_k")
        with torch.no_grad():
            o, lse = attend(RENAMED, q, k, v, causal=causal, window_size=window, softmax_scale=softmax_scale, softcap=softcap,
                            cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqlen_q=longest("max_seqlen_q", max_seqlen_q),
                            seqlen_kv=longest("max_seqlen_k", max_seqlen_k), q_lengths=int32("seqused_q", seqused_q),
                            kv_lengths=int32("seqused_k", seqused_k), kv_starts=int32("leftpad_k", leftpad_k), return_lse=True,
                            **descales(k, k_descale, v_descale, cu_seqlens_k))
    return o if out_ is None else out_.copy_(o), lse, o.new_empty(0), o.new_empty(0)


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, cu_seqlens_q=None, cu_seqlens_k=None, sequed_q=None, sequed_k=None,
                         max_seqlen_q=None, max_seqlen_k=None, dq=None, dk=None, dv=None, softmax_scale=None, is_causal=False,
                         window_size_left=-1, window_size_right=-1, softcap=0.0, deterministic=False, sm_margin=0):
    return gradients(dout, q, k, v, out, softmax_lse, {"dq": dq, "dk": dk, "dv": dv}, is_causal, (window_size_left, window_size_right),
                     softmax_scale, softcap, deterministic,
                     seqlens=(longest("max_seqlen_q", max_seqlen_q), longest("max_seqlen_k", max_seqlen_k)),
                     cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, q_lengths=int32("sequed_q", sequed_q),
                     kv_lengths=int32("sequed_k", sequed_k))
