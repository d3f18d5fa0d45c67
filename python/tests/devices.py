"""Where the tests run: classes written once run on the CPU, and on a CUDA device where PyTorch and this build have one."""

import sys
import unittest
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
from arrays import BFLOAT16

import tilewise

GPU = "cuda"


@lru_cache
def no_gpu():
    """Why nothing runs on a GPU here; "" where it does."""
    if not find_spec("torch"):
        return "PyTorch is not installed"
    import torch

    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    found = tilewise.info()["cuda"]
    return found if isinstance(found, str) else ""


def on_every_device(kind):
    """A class decorator: beside `kind`, for the CPU, a class KINDOnGpu whose `device` is GPU."""
    name = kind.__name__ + "OnGpu"
    twin = type(name, (kind,), {"device": GPU, "__module__": kind.__module__, "__doc__": kind.__doc__})
    setattr(sys.modules[kind.__module__], name, unittest.skipIf(no_gpu(), no_gpu())(twin))
    return kind


def put(array, device):
    """NumPy's array itself on the CPU, a tensor with the same bits on the GPU; what is no array as it is."""
    if device == "cpu" or not isinstance(array, np.ndarray):
        return array
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array).to(device)


def floats(array):
    """Any array as NumPy's float32 or fp64, to be compared."""
    if isinstance(array, np.ndarray):
        return array.astype(np.float32) if array.dtype.itemsize == 2 else array
    return array.detach().float().cpu().numpy()


class OnDevice(unittest.TestCase):
    """Tests of arrays: put() brings NumPy's to the device."""

    device = "cpu"

    def put(self, array):
        return put(array, self.device)


class WithTorch(OnDevice):
    """Tests of tensors: the device is PyTorch's default one, on which its functions make tensors."""

    def setUp(self):
        import torch

        before = torch.get_default_device()
        torch.set_default_device(self.device)
        self.addCleanup(torch.set_default_device, before)


def here(array):
    """NumPy's array as a tensor on PyTorch's default device."""
    import torch

    return torch.from_numpy(array).to(torch.get_default_device())
