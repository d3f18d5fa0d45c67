"""flash_attn.modules.mha's two modules without weights, with its names, arguments and defaults."""

from .flash_attn import (flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_kvpacked_func,
                         flash_attn_varlen_qkvpacked_func)
from .torch import torch


class _Attention(torch.nn.Module):
    def __init__(self, causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic):
        super().__init__()
        self.causal, self.softmax_scale, self.window_size, self.deterministic = causal, softmax_scale, window_size, deterministic
        self.drop = torch.nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)

    def options(self, causal):
        # A model in 16 bits has its buffers in 16 bits.
        slopes = None if self.alibi_slopes is None else self.alibi_slopes.float()
        return {"dropout_p": self.drop.p if self.training else 0.0, "softmax_scale": self.softmax_scale, "alibi_slopes": slopes,
                "causal": self.causal if causal is None else causal, "window_size": self.window_size, "deterministic": self.deterministic}


class FlashSelfAttention(_Attention):
    """Attention of qkv [B, S, 3, H, D], or packed [total, 3, H, D] with cu_seqlens and max_seqlen; dropout while training."""

    def __init__(self, causal=False, softmax_scale=None, attention_dropout=0.0, window_size=(-1, -1), alibi_slopes=None,
                 deterministic=False):
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(self, qkv, causal=None, cu_seqlens=None, max_seqlen=None):
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **self.options(causal))
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **self.options(causal))


class FlashCrossAttention(_Attention):
    """Attention of q [B, Sq, H, D] over kv [B, Skv, 2, Hkv, D], or of packed ones with cu_seqlens; dropout while training."""

    def __init__(self, causal=False, softmax_scale=None, attention_dropout=0.0, alibi_slopes=None, window_size=(-1, -1),
                 deterministic=False):
        super().__init__(causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic)

    def forward(self, q, kv, causal=None, cu_seqlens=None, max_seqlen=None, cu_seqlens_k=None, max_seqlen_k=None):
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **self.options(causal))
        return flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **self.options(causal))
