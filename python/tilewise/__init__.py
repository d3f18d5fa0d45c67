"""Exact attention, computed tile by tile, for the arrays of any framework.

    import numpy as np, tilewise
    q = k = v = np.ones((1, 5, 2, 8), np.float32)      # [batch, seqlen, heads, head_dim]
    o = tilewise.attention(q, k, v, causal=True)       # like q

Arrays come in through DLPack (NumPy, PyTorch, CuPy, JAX outside of jit) and results are of q's framework and device. No
framework is imported here: `tilewise.torch` (autograd, flash_attn's functions) needs PyTorch, `tilewise.transformers`
Hugging Face's library, when they are asked for.
"""

from importlib import import_module as _import_module

from ._attention import Gradients, attention, attention_backward, merge
from ._cache import cache_append
from ._core import Plan
from ._core import version as _version
from ._install import install_as_flash_attn
from ._looking import Verification, attention_weights, explain, info, plan, verify

__version__ = _version()
__all__ = ["Gradients", "Plan", "Verification", "attention", "attention_backward", "attention_weights",
           "cache_append", "explain", "info", "install_as_flash_attn", "merge", "plan", "verify"]

_SUBMODULES = ("bert_padding", "flash_attn", "flash_attn_interface", "rotary", "torch", "transformers")


def __getattr__(name):
    if name in _SUBMODULES:
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
