"""The models of python_training.py: small torch modules whose attention is an argument, so that nothing else differs.

An attention is a function (q, k, v, causal, ranges, keys) of q [B, Sq, Hq, D], k and v [B, Skv, Hkv, D]:
causal from the bottom-right corner; ranges an Images or None, the keys [first, last) that a row sees; keys int32 [B]
or None, how many of a cache's rows are filled.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


def dense_mask(q, k, causal, ranges, keys):
    """What the other implementations need for `ranges` and `keys`: bool [B, 1, Sq, Skv]."""
    at = torch.arange(k.shape[1], device=q.device)
    mask = torch.ones(1, 1, 1, k.shape[1], dtype=torch.bool, device=q.device)
    if ranges is not None:
        mask = mask & ((at >= ranges.keys[..., :1]) & (at < ranges.keys[..., 1:]))[:, None]
    if keys is not None:
        mask = mask & (at < keys[:, None])[:, None, None]
    if causal:
        mask = mask & torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril(k.shape[1] - q.shape[1])
    return mask


def eager(q, k, v, causal=False, ranges=None, keys=None):
    """The three steps as transformers' eager attention does them: scores in memory, the softmax in fp32."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal or ranges is not None or keys is not None:
        mask = dense_mask(q.transpose(1, 2), k.transpose(1, 2), causal, ranges, keys)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return (scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2)


def sdpa(q, k, v, causal=False, ranges=None, keys=None):
    """torch's scaled_dot_product_attention, which takes the best of its backends."""
    mask = None
    if ranges is not None or keys is not None or (causal and q.shape[1] != k.shape[1]):
        mask, causal = dense_mask(q, k, causal, ranges, keys), False
    o = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, is_causal=causal,
                                                enable_gqa=q.shape[2] != k.shape[2])
    return o.transpose(1, 2)


def tilewise(q, k, v, causal=False, ranges=None, keys=None):
    from tilewise.torch import attention

    if ranges is not None:  # consecutive rows see one image and no other: sequences of their own, packed
        packed = attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_seqlens_q=ranges.text, cu_seqlens_kv=ranges.latents,
                           seqlen_q=ranges.longest_text, seqlen_kv=ranges.longest_latents)
        return packed.unflatten(0, q.shape[:2])
    return attention(q, k, v, causal=causal, kv_lengths=keys)


IMPLEMENTATIONS = {"eager": eager, "sdpa": sdpa, "tilewise": tilewise}


@dataclass
class Images:
    """Which image latents each row of text sees: as ranges of keys int32 [B, Sq, 2], and as what is packed for both sides."""

    keys: torch.Tensor
    text: torch.Tensor
    latents: torch.Tensor
    longest_text: int
    longest_latents: int


@dataclass
class Shape:
    """A decoder: GPT-2's blocks, or Llama's where `llama`."""

    width: int
    layers: int
    heads: int
    heads_kv: int
    vocabulary: int
    llama: bool

    @property
    def dim(self):
        return self.width // self.heads


SHAPES = {"gpt2-small": Shape(768, 12, 12, 12, 50304, False),  # 124 M parameters
          "llama-like": Shape(2048, 8, 16, 4, 32000, True),    # 8 of the 16 to 22 layers of a 1 B model, head_dim 128
          "tiny": Shape(64, 2, 4, 2, 128, True)}


def turned(x, first):
    """Rotary embedding of x [B, S, H, D] whose first row stands at `first`, an int or a tensor of one."""
    half = x.shape[-1] // 2
    at = torch.arange(x.shape[1], device=x.device) + first
    angle = at[:, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    """Self attention, or over `other` where it is given; with `cache` (k, v, filled) new keys are written behind the filled."""

    def __init__(self, shape, attend):
        super().__init__()
        self.shape, self.attend = shape, attend
        self.q = nn.Linear(shape.width, shape.width, bias=False)
        self.kv = nn.Linear(shape.width, 2 * shape.heads_kv * shape.dim, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x, other=None, ranges=None, cache=None):
        s, source = self.shape, x if other is None else other
        q = self.q(x).unflatten(-1, (s.heads, s.dim))
        k, v = self.kv(source).unflatten(-1, (2, s.heads_kv, s.dim)).unbind(2)
        first = 0 if cache is None else cache[2][0]
        if s.llama and other is None:
            q, k = turned(q, first), turned(k, first)
        keys = None
        if cache is not None:
            at = cache[2][0] + torch.arange(x.shape[1], device=x.device)
            k, v = (held.index_copy_(1, at, new) for held, new in zip(cache[:2], (k, v)))
            keys = cache[2] + x.shape[1]
        # One new query sees all the keys; a prompt in an empty cache is plain causal order over its own rows.
        if keys is not None and x.shape[1] > 1:
            k, v, keys = k[:, :x.shape[1]], v[:, :x.shape[1]], None
        o = self.attend(q, k, v, other is None and x.shape[1] > 1, ranges, keys)
        return self.out(o.flatten(2))


class Block(nn.Module):
    def __init__(self, shape, attend, crosses=False):
        super().__init__()
        norm = nn.RMSNorm if shape.llama else nn.LayerNorm
        inner = shape.width * 11 // 4 if shape.llama else shape.width * 4
        self.norms = nn.ModuleList(norm(shape.width) for _ in range(3 if crosses else 2))
        self.attention, self.llama = Attention(shape, attend), shape.llama
        self.cross = Attention(shape, attend) if crosses else None
        self.gate = nn.Parameter(torch.full((1,), 0.5)) if crosses else None
        self.up = nn.Linear(shape.width, inner * (2 if shape.llama else 1), bias=False)
        self.down = nn.Linear(inner, shape.width, bias=False)

    def forward(self, x, images=None, ranges=None, cache=None):
        if self.cross is not None:
            x = x + self.gate.tanh() * self.cross(self.norms[2](x), other=images, ranges=ranges)
        x = x + self.attention(self.norms[0](x), cache=cache)
        up = self.up(self.norms[1](x))
        if self.llama:
            a, b = up.chunk(2, -1)
            return x + self.down(functional.silu(a) * b)
        return x + self.down(functional.gelu(up))


class Decoder(nn.Module):
    """`crosses`: every second block also attends to images, as Flamingo's gated cross attention does."""

    def __init__(self, shape, attend, crosses=False):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, attend, crosses and n % 2 == 0) for n in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids, images=None, ranges=None, caches=None, last=False):
        x = self.embedding(ids)
        for n, block in enumerate(self.blocks):
            x = block(x, images, ranges, caches[n] if caches else None)
        return self.head(self.norm(x[:, -1:] if last else x))


def images_of(batch, rows, width, device, dtype, every=512, latents=64):
    """Image latents [B, images * latents, width], one image every 512 rows of text, which see the latest."""
    count = max(1, rows // every)
    latest = (torch.arange(rows, device=device) // every).clamp_max(count - 1) * latents
    keys = torch.stack((latest, latest + latents), -1).int().expand(batch, -1, -1).contiguous()
    starts = torch.arange(batch, device=device)[:, None] * rows + torch.arange(count, device=device) * every
    text = torch.cat((starts.flatten(), starts.new_tensor([batch * rows]))).int()
    packed = torch.arange(batch * count + 1, device=device, dtype=torch.int32) * latents
    images = Images(keys, text, packed, rows - (count - 1) * every, latents)
    return torch.randn(batch, count * latents, width, device=device, dtype=dtype), images
