"""FlashAttention-3's functions, with its names, argument orders, defaults and returns, computed by tilewise.

They differ from version 2's in the order of their arguments and in having no dropout. num_splits, pack_gqa, sm_margin and
scheduler_metadata steer that library's kernels and change no result; here they change nothing.
"""

from .flash_attn import over_cache, unserved
from .torch import attention, int32

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
                    sm_margin=0, return_attn_probs=False):
    """q [B, Sq, Hq, D], k [B, Skv, Hkv, D], v [B, Skv, Hkv, Dv]. Returns o, or (o, lse [B, Hq, Sq])."""
    unserved(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk or None)
    return attention(q, k, v, causal=causal, window_size=tuple(window_size), softmax_scale=softmax_scale, softcap=softcap,
                     deterministic=deterministic, return_lse=return_attn_probs)


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
                              window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None,
                              sm_margin=0, return_attn_probs=False):
    """qkv [B, S, 3, H, D], or [B, S, Hq + 2 Hkv, D] with num_heads_q. Else flash_attn_func."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(dim=2)
    else:
        if num_heads_q is None:
            raise ValueError(f"qkv has shape {list(qkv.shape)} without num_heads_q; accepted: [batch, seqlen, 3, heads, "
                             "head_dim], or num_heads_q with [batch, seqlen, heads, head_dim]")
        heads_kv = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, heads_kv, heads_kv], dim=2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
                           attention_chunk, softcap, deterministic=deterministic, return_attn_probs=return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None,
                           softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                           window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                           deterministic=False, sm_margin=0, return_attn_probs=False):
    """q [total_q, Hq, D], k and v [total_k, Hkv, D]; cu_seqlens int32 [B + 1]; seqused int32 [B]: rows in use of each."""
    unserved(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk or None)
    return attention(q, k, v, causal=causal, window_size=tuple(window_size), softmax_scale=softmax_scale, softcap=softcap,
                     cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k, seqlen_q=int(max_seqlen_q),
                     seqlen_kv=int(max_seqlen_k), q_lengths=int32(seqused_q), kv_lengths=int32(seqused_k),
                     deterministic=deterministic, return_lse=return_attn_probs)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
                            cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
                            cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
                            q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
                            scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False):
    """As tilewise.flash_attn's, with this version's order; q may be packed, [total_q, Hq, D] with cu_seqlens_q, if not rotated."""
    unserved(qv=qv, cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens,
             q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk or None)
    return over_cache("page_table", q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
                      page_table, rotary_interleaved, causal=causal, window_size=tuple(window_size),
                      softmax_scale=softmax_scale, softcap=softcap, kv_starts=cache_leftpad, cu_seqlens_q=cu_seqlens_q,
                      seqlen_q=int(max_seqlen_q or 0), return_lse=return_softmax_lse)
