"""What differs between frameworks: how an array is made, on which stream a call runs, how many threads it may take.

Frameworks are never imported here. A type is looked up once: its framework is in sys.modules if an array of it exists.
"""

import sys
from typing import Any

from . import _core


class Framework:
    """Arrays that follow the array API standard: `q.__array_namespace__()` makes outputs."""

    name = "array API"

    def read(self, array: Any) -> Any:
        """The array without what DLPack would refuse."""
        return array

    def as_bool(self, array: Any) -> Any:
        """The bytes of a uint8 array as bool, not copied."""
        return array.view(bool)

    def empty(self, like: Any, shape: tuple, dtype: Any = None) -> Any:
        """An array to be written, on like's device; `dtype` is "float32", an array's dtype, or None for like's own."""
        space = like.__array_namespace__()
        dtype = getattr(space, dtype) if isinstance(dtype, str) else dtype or like.dtype
        return space.empty(shape, dtype=dtype, device=like.device)

    def result(self, written: Any) -> Any:
        """What the caller gets for an array that empty() made."""
        return written

    def is_cuda(self, array: Any) -> bool:
        return array.__dlpack_device__()[0] in (2, 13)

    def stream(self, array: Any) -> int:
        """The caller's current stream on the array's CUDA device; 0 is the legacy default one."""
        return 0

    def threads(self) -> int:
        """0 = the library's default."""
        return 0

    def tracks(self, *arrays: Any) -> bool:
        """Whether the framework would want a gradient of these, by itself."""
        return False


class NumPy(Framework):
    name = "numpy"

    def empty(self, like, shape, dtype=None):
        return sys.modules["numpy"].empty(shape, dtype or like.dtype)

    def is_cuda(self, array):
        return False


class Torch(Framework):
    name = "torch"

    def read(self, array):
        return array.detach() if array.requires_grad else array

    def as_bool(self, array):
        return array.view(sys.modules["torch"].bool)

    def empty(self, like, shape, dtype=None):
        torch = sys.modules["torch"]
        if dtype is None and shape == like.shape:
            return torch.empty_like(like)  # a third of new_empty's time
        return like.new_empty(shape, dtype=getattr(torch, dtype) if isinstance(dtype, str) else dtype)

    def is_cuda(self, array):
        return array.is_cuda

    def stream(self, array):
        return sys.modules["torch"]._C._cuda_getCurrentRawStream(array.get_device())

    def threads(self):
        return sys.modules["torch"].get_num_threads()

    def tracks(self, *arrays):
        torch = sys.modules["torch"]
        if torch.autograd.forward_ad._current_level >= 0:  # tilewise.torch looks which of them have a tangent
            return True
        for x in arrays:
            if x is not None and getattr(x, "requires_grad", False):
                return torch.is_grad_enabled()
        return False


class CuPy(Framework):
    name = "cupy"

    def empty(self, like, shape, dtype=None):
        with like.device:
            return sys.modules["cupy"].empty(shape, dtype or like.dtype)

    def is_cuda(self, array):
        return True

    def stream(self, array):
        with array.device:
            return sys.modules["cupy"].cuda.get_current_stream().ptr


class Jax(Framework):
    """Its arrays are not written once anybody has seen them. So on a CPU results are made by NumPy and handed over; on a GPU
    they are new arrays, written before the caller gets them. JAX tells nobody its streams: the call waits for the result.
    """

    name = "jax"

    def empty(self, like, shape, dtype=None):
        if not self.is_cuda(like):
            return sys.modules["numpy"].empty(shape, dtype or like.dtype)
        return sys.modules["jax"].numpy.empty(shape, dtype or like.dtype, device=like.device)

    def result(self, written):
        jax = sys.modules["jax"]
        if isinstance(written, jax.Array):
            _core.wait(written.__dlpack_device__()[1])
            return written
        with jax.default_device(jax.devices("cpu")[0]):
            return jax.numpy.asarray(written)


_numpy, _torch, _cupy, _jax, _standard = NumPy(), Torch(), CuPy(), Jax(), Framework()
_of_type: dict[type, Framework] = {}


def _find(name: str, array: Any) -> Framework:
    def is_a(module: str, kind: str) -> bool:
        found = sys.modules.get(module)
        return found is not None and isinstance(array, getattr(found, kind))

    if is_a("numpy", "ndarray"):
        if is_a("numpy.ma", "MaskedArray"):
            raise TypeError(f"{name} is {describe(array)}; accepted: an array without a mask, as its .data or .filled(); which keys a "
                            "query sees is mask=")
        return _numpy
    if is_a("torch", "Tensor"):
        return _torch
    if is_a("cupy", "ndarray"):
        return _cupy
    if is_a("jax", "Array"):
        if isinstance(array, sys.modules["jax"].core.Tracer):
            raise TypeError(f"{name} is a JAX tracer; accepted: arrays with values, outside of jax.jit, grad and vmap, or "
                            "inside of jax.pure_callback")
        return _jax
    if hasattr(array, "__dlpack__") and hasattr(array, "__array_namespace__"):
        return _standard
    raise TypeError(f"{name} is {describe(array)}; accepted: an array of NumPy, PyTorch, CuPy, JAX, or another one with "
                    "__dlpack__ and __array_namespace__")


def framework_of(name: str, array: Any) -> Framework:
    kind = type(array)
    found = _of_type.get(kind)
    if found is None:
        found = _of_type[kind] = _find(name, array)
    return found


def _has_shape(array: Any) -> bool:
    try:
        return hasattr(array, "shape")
    except RuntimeError:  # of a nested tensor
        return True


def describe(array: Any) -> str:
    """ "numpy.ndarray float32 [2, 5] on cpu": what an error says of an argument."""
    kind = type(array)
    text = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}.{kind.__name__}"
    if isinstance(array, type) or not _has_shape(array):
        return f"{text} {array!r:.40}"
    dtype = str(getattr(array, "dtype", "?")).removeprefix("torch.")
    device = getattr(array, "device", "cpu")
    try:
        shape = list(array.shape)
    except RuntimeError:  # a nested tensor has none
        shape = "nested"
    return f"{text} {dtype} {shape} on {device}"
