"""Rotary embedding, with the names of flash_attn.layers.rotary: plain torch, differentiable, computed in fp32."""

import torch


def rotate_half(x, interleaved=False):
    """Each pair (a, b) becomes (-b, a); pairs are halves of the last dimension, or neighbours where interleaved."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None):
    """x [B, S, H, D] (packed: [total, H, D] with cu_seqlens), cos and sin [rows, R / 2]: the first R of D are rotated.

    seqlen_offsets, a number or [B]: the position of each sequence's first row.
    """
    if cu_seqlens is None:
        rows = torch.arange(x.shape[1], device=x.device)
        offsets = torch.as_tensor(seqlen_offsets, device=x.device)
        at = rows + offsets[:, None] if offsets.dim() else (rows + offsets)[None]
    else:
        lengths = cu_seqlens.diff()
        starts = cu_seqlens[:-1].long() - torch.as_tensor(seqlen_offsets, device=x.device)
        at = torch.arange(x.shape[0], device=x.device) - starts.repeat_interleave(lengths, output_size=x.shape[0])
    repeat = (lambda t: t.repeat_interleave(2, dim=-1)) if interleaved else (lambda t: torch.cat((t, t), dim=-1))
    c, s = (repeat(t[at].float())[..., None, :] for t in (cos, sin))
    turned, rest = x[..., :c.shape[-1]].float(), x[..., c.shape[-1]:]
    turned = (turned * c + rotate_half(turned, interleaved) * s).to(x.dtype)
    result = torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
    return x.copy_(result) if inplace else result
