"""Rotary embedding, with the names of flash_attn.layers.rotary: plain torch, differentiable, computed in fp32."""

from ._frameworks import describe
from ._pytorch import torch
from ._torch_arguments import refuse_tensor, tensor, whole
from ._torch_ops import traced


def rotate_half(x, interleaved=False):
    """Each pair (a, b) becomes (-b, a); pairs are halves of the last dimension, or neighbours where interleaved."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None):
    """x [B, S, H, D] (packed: [total, H, D] with cu_seqlens), cos and sin [rows, R / 2]: the first R of D are rotated.

    seqlen_offsets, a number or [B]: the position of each sequence's first row. The tables have a row for each position; on a
    device, whose offsets nobody waits for, later positions are turned as the last.
    """
    _check_tables(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen)
    if cu_seqlens is None:
        rows = torch.arange(x.shape[1], device=x.device)
        offsets = torch.as_tensor(seqlen_offsets, device=x.device)
        at = rows + offsets[:, None] if offsets.dim() else (rows + offsets)[None]
    else:
        lengths = cu_seqlens.diff()
        starts = cu_seqlens[:-1].long() - torch.as_tensor(seqlen_offsets, device=x.device)
        at = torch.arange(x.shape[0], device=x.device) - starts.repeat_interleave(lengths, output_size=x.shape[0])
    if isinstance(seqlen_offsets, torch.Tensor) or cu_seqlens is not None:
        if at.is_cpu and at.numel() and not traced(at) and int(at.max()) >= len(cos):
            raise ValueError(f"cos has {len(cos)} rows and a row of x stands at position {int(at.max())}; accepted: a row for each position")
        at = at.clamp(0, len(cos) - 1)
    repeat = (lambda t: t.repeat_interleave(2, dim=-1)) if interleaved else (lambda t: torch.cat((t, t), dim=-1))
    c, s = (repeat(t[at].float())[..., None, :] for t in (cos, sin))
    turned, rest = x[..., :c.shape[-1]].float(), x[..., c.shape[-1]:]
    turned = (turned * c + rotate_half(turned, interleaved) * s).to(x.dtype)
    result = torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
    return x.copy_(result) if inplace else result


def _check_tables(x, cos, sin, offsets, cu_seqlens, max_seqlen):
    for name, given in (("x", x), ("cos", cos), ("sin", sin)):
        if given is None:
            refuse_tensor(name, given)
        tensor(name, given)
    tensor("cu_seqlens", cu_seqlens)
    if x.dim() != (4 if cu_seqlens is None else 3):
        raise ValueError(f"x is {describe(x)}; accepted: [batch, seqlen, heads, head_dim], or [total, heads, head_dim] with cu_seqlens")
    if cos.dim() != 2 or sin.shape != cos.shape or 2 * cos.shape[1] > x.shape[-1]:
        raise ValueError(f"cos is {describe(cos)} and sin {describe(sin)}; accepted: both [positions, R / 2], R at most head_dim, "
                         f"{x.shape[-1]}")
    batch, rows = (x.shape[0], x.shape[1]) if cu_seqlens is None else (len(cu_seqlens) - 1, max_seqlen)
    if isinstance(offsets, torch.Tensor):
        if offsets.dim() and offsets.shape != (batch,):
            raise ValueError(f"seqlen_offsets is {describe(offsets)}; accepted: a number, or integers [{batch}] = [batch]")
    elif rows is not None and not 0 <= whole("seqlen_offsets", offsets) <= len(cos) - rows:
        raise ValueError(f"seqlen_offsets is {offsets} with {rows} rows of x and {len(cos)} of cos; accepted: a row of cos for each position")


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary(x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, inplace=False, conjugate=False):
    """flash_attn.ops.triton.rotary's: apply_rotary_emb with its order of arguments; `conjugate` turns back."""
    return apply_rotary_emb(x, cos, -sin if conjugate else sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen)


def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """x [B, S, H, D], cos and sin [S, R / 2] or [B, S, R / 2], a row of them for each of x."""
    if cos.dim() == 2:
        return apply_rotary_emb(x, cos, sin, interleaved)
    return torch.stack([apply_rotary_emb(row[None], c, s, interleaved)[0] for row, c, s in zip(x, cos, sin)])


def apply_rotary_emb_qkv_(qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, num_heads_q=None):
    """q and k of qkv [B, S, 3, H, D], or [B, S, Hq + 2 Hkv, D] with num_heads_q, in place; k by cos_k and sin_k where given."""
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        if num_heads_q is None or (qkv.shape[2] - num_heads_q) % 2:
            raise ValueError(f"qkv has shape {list(qkv.shape)} and num_heads_q is {num_heads_q}; accepted: [batch, seqlen, 3, heads, "
                             "head_dim], or [batch, seqlen, num_heads_q + 2 heads_kv, head_dim]")
        heads_kv = (qkv.shape[2] - num_heads_q) // 2
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q:num_heads_q + heads_kv]
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k, interleaved, True, seqlen_offsets)
    return qkv


def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets=0):
    """k of kv [B, S, 2, H, D], in place."""
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


class RotaryEmbedding(torch.nn.Module):
    """Angles position * base^(-2c / dim) of pair c, and with scale_base XPos' growth: q times, k over ((2c + 0.4 dim) /
    (1.4 dim))^((position - seqlen // 2) / scale_base). Tables are made in fp32, kept in the input's type."""

    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, device=None):
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        pairs = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", self.base ** (-pairs / dim), persistent=False)
        self.register_buffer("scale", None if scale_base is None else (pairs + 0.4 * dim) / (1.4 * dim), persistent=False)
        self._seq_len_cached = 0
        self._cos_cached = self._sin_cached = self._cos_k_cached = self._sin_k_cached = None

    def _update_cos_sin_cache(self, seqlen, device=None, dtype=None):
        made = self._cos_cached
        if made is not None and seqlen <= self._seq_len_cached and (made.device, made.dtype) == (torch.device(device), dtype) and not (
                self.training and made.is_inference()):
            return
        self._seq_len_cached = seqlen
        # A model in 16 bits has its buffers in 16 bits, too few for angles.
        pairs = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        at = torch.arange(seqlen, device=device, dtype=torch.float32)
        angles = torch.outer(at, self.base ** (-pairs / self.dim))
        cos, sin = angles.cos(), angles.sin()
        if self.scale_base is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        growth = ((pairs + 0.4 * self.dim) / (1.4 * self.dim)) ** ((at - seqlen // 2) / self.scale_base)[:, None]
        self._cos_cached, self._sin_cached = (cos * growth).to(dtype), (sin * growth).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / growth).to(dtype), (sin / growth).to(dtype)

    def forward(self, qkv, kv=None, seqlen_offset=0, max_seqlen=None, num_heads_q=None):
        """qkv of apply_rotary_emb_qkv_(), or q [B, S, H, D] with kv [B, S, 2, H, D]; in place. Returns qkv, or (q, kv).

        Offsets in a tensor [B] need max_seqlen, the tables' length, unless an earlier call has made them long enough.
        """
        longest = qkv.shape[1] + seqlen_offset if isinstance(seqlen_offset, int) else None
        if max_seqlen is not None or longest is not None:
            self._update_cos_sin_cache(longest if max_seqlen is None else max_seqlen, qkv.device, qkv.dtype)
        elif self._cos_cached is None:
            raise ValueError("seqlen_offset is a tensor without max_seqlen; accepted: max_seqlen, the longest position and 1")
        cos, sin = self._cos_cached, self._sin_cached
        cos_k, sin_k = (cos, sin) if self.scale_base is None else (self._cos_k_cached, self._sin_k_cached)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
