"""The third return of flash_attn's functions under dropout: dense probabilities with the mask in their signs, for tests alone."""

from ._arguments import window
from ._pytorch import torch


def signed_probabilities(q, k, dropout_p, state, options):
    """P [B, Hq, Sq, Skv] over its row's largest, in q's type on q's device; negative where dropped.

    One sequence at a time in fp64; of packed ones the host waits for the lengths.
    """
    q, k = q.detach(), k.detach()
    sequences = list(apart(q, k, options))
    slopes, scale = options["alibi_slopes"], options["softmax_scale"]
    shape = (len(sequences), q.shape[-2], options.get("seqlen_q") or q.shape[1], longest_keys(k, options))
    p = q.new_zeros(shape)
    for b, (rows, keys) in enumerate(sequences):
        group = rows.shape[1] // keys.shape[1]
        scores = rows.double().transpose(0, 1) @ keys.double().permute(1, 2, 0).repeat_interleave(group, 0)
        scores *= q.shape[-1] ** -0.5 if scale is None else scale
        if options["softcap"]:
            scores = (scores / options["softcap"]).tanh() * options["softcap"]
        at = torch.arange(len(rows), device=q.device)[:, None] + (len(keys) - len(rows))
        beside = torch.arange(len(keys), device=q.device) - at
        if slopes is not None:
            scores -= (slopes if slopes.dim() == 1 else slopes[b]).double()[:, None, None] * beside.abs()
        left, right = window(options["window_size"])
        right = 0 if options["causal"] else right
        if left >= 0:
            scores.masked_fill_(beside < -left, -torch.inf)
        if right >= 0:
            scores.masked_fill_(beside > right, -torch.inf)
        weights = (scores - scores.amax(-1, keepdim=True)).exp().nan_to_num(0.0) if len(keys) else scores
        keep = kept(dropout_p, state, b, *weights.shape)
        p[b, :, :len(rows), :len(keys)] = torch.where(keep, weights, -weights).to(q.dtype)
    return p


def apart(q, k, options):
    """q [Sq, H, D] and k [Skv, Hkv, D] of each sequence."""
    def ends(name):
        return options[name].tolist()

    if options.get("page_table") is not None:
        filled = options["kv_lengths"].tolist()
        keys = [k[pages.long()].flatten(0, 1)[:n] for pages, n in zip(options["page_table"], filled)]
    elif options.get("cu_seqlens_kv") is not None:
        keys = [k[a:b] for a, b in zip(ends("cu_seqlens_kv"), ends("cu_seqlens_kv")[1:])]
    else:
        keys = list(k)
    if options.get("cu_seqlens_q") is not None:
        rows = [q[a:b] for a, b in zip(ends("cu_seqlens_q"), ends("cu_seqlens_q")[1:])]
    else:
        rows = list(q)
    return zip(rows, keys)


def longest_keys(k, options):
    if options.get("page_table") is not None:
        return options["page_table"].shape[1] * k.shape[1]
    return options.get("seqlen_kv") or k.shape[1]


def kept(p, state, batch, heads, rows, keys):
    """The dropout mask of one sequence, bool [heads, rows, keys]: _reference.kept() in int64, so that it is made where state is."""
    word = 2**32 - 1

    def signed(x):  # of 64 bits, as int64 has them
        return (x + 2**63) % 2**64 - 2**63

    def shifted(x, by):  # logically
        return (x >> by) & (2 ** (64 - by) - 1)

    def mix(x):
        x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
        x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
        return x ^ shifted(x, 31)

    def upto(n):
        return torch.arange(n, dtype=torch.int64, device=state.device)

    golden = signed(0x9E3779B97F4A7C15)
    x = mix(mix(state[0] + golden) ^ (state[1] + golden))
    x = mix(x ^ signed(batch * 0xD1342543DE82EF95))
    x = mix(x ^ (upto(heads) * signed(0xAF251AF3B0F025B5)))
    x = mix(x[:, None] ^ (upto(rows) * golden))[..., None]
    y = (upto((keys + 1) // 2) * 0x9E3779B1 + (x & word)) & word
    y = ((y ^ (y >> 16)) * 0x21F0AAAD) & word
    y = ((y ^ (y >> 15) ^ shifted(x, 32)) * 0x735A2D97) & word
    y = y ^ (y >> 15)
    bits = torch.stack((y & 0xFFFF, y >> 16), dim=-1).flatten(-2)[..., :keys]
    return bits >= round(p * 65536)
