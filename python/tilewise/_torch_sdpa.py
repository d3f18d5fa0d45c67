"""PyTorch's own scaled_dot_product_attention by tilewise: a provider in its registry of flash attention.

    import tilewise.torch, torch
    torch.nn.attention.activate_flash_attention_impl("tilewise")       # PyTorch 2.11 or later
    torch.nn.attention.restore_flash_attention_impl()

Registered by the import of tilewise.torch, active only when asked for. It takes what PyTorch would give to its flash backend: CUDA
tensors in 16 bits without a mask, causal or not, dropout and grouped heads included.
"""

from . import _core
from ._pytorch import torch
from ._torch_ops import OPTIONAL, backward, forward

NAME = "tilewise"


class Handle:
    """What PyTorch keeps while the implementation is active."""

    def __init__(self, library):
        self.library = library

    def remove(self):
        self.library = None


def arguments(query, key, value, dropout_p, is_causal, state, scale):
    """Those of the operator, of tensors [B, H, S, D] as [B, S, H, D]. PyTorch's causal order is from the top-left corner."""
    arrays = dict.fromkeys(OPTIONAL)
    if dropout_p:
        arrays["dropout_state"] = state
    where = _core.TOP_LEFT if is_causal else _core.BOTTOM_RIGHT
    rows = (x.transpose(1, 2) for x in (query, key, value))
    return (*rows, *arrays.values(), False, 0, is_causal, where, -1, -1, scale, 0.0, dropout_p, 0, 0,
            torch.are_deterministic_algorithms_enabled(), False, 0)


def sdpa_forward(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    if return_debug_mask:
        raise NotImplementedError("tilewise gives no debug mask; accepted: return_debug_mask=False")
    state = torch.zeros(2, dtype=torch.int64, device=query.device)
    if dropout_p:
        state.random_(-(2**63), 2**63 - 1)
    o, lse = forward(*arguments(query, key, value, dropout_p, is_causal, state, scale))
    return o.transpose(1, 2), lse, None, None, query.shape[2], key.shape[2], state, state.new_empty(0), query.new_empty(0)


def sdpa_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
                  philox_seed, philox_offset, *, scale=None):
    dout, o = grad_out.transpose(1, 2), out.transpose(1, 2)
    if dout.shape[-1] > 1 and dout.stride(-1) != 1:
        dout = dout.contiguous()
    rest = arguments(query, key, value, dropout_p, is_causal, philox_seed, scale)
    return tuple(x.transpose(1, 2) for x in backward(dout, None, o, logsumexp, False, False, *rest)[:3])


def activate():
    library = torch.library.Library("aten", "IMPL", "CUDA")
    library.impl("_scaled_dot_product_flash_attention", sdpa_forward, "CUDA")
    library.impl("_scaled_dot_product_flash_attention_backward", sdpa_backward, "CUDA")
    return Handle(library)


def register():
    """Tells PyTorch's registry the name, where it has one."""
    add = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if add is not None:
        add(NAME, register_fn=activate)
