"""PyTorch, or one line that says who needs it."""

try:
    import torch
except ImportError:
    raise ImportError("tilewise.torch needs PyTorch (pip install torch), as do flash_attn's functions; NumPy and others need only "
                      "tilewise") from None

__all__ = ["torch"]
