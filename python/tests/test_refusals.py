"""Bad input gets an exception that names the argument, says what it is and what is accepted; never a crash."""

import ctypes
import unittest

import numpy as np
from arrays import Source, integers

import tilewise


NOTHING = object()  # None, where None would mean the default


class Refusals(unittest.TestCase):
    def setUp(self):
        self.source = Source(1)
        self.q, self.k, self.v = self.source.qkv(2, 5, 7, 4, 2, 8, 8)

    def refuses(self, kind, *words, q=None, k=None, v=None, **options):
        arrays = (self.q if q is None else q, self.k if k is None else k, self.v if v is None else v)
        arrays = [None if array is NOTHING else array for array in arrays]
        with self.assertRaises(kind) as caught:
            tilewise.attention(*arrays, **options)
        self.assertIs(type(caught.exception), kind)
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertRegex(str(caught.exception), r"accepted|kernel")

    def test_shapes(self):
        self.refuses(ValueError, "q is numpy.ndarray float32 [5, 8] on cpu", "[batch, seqlen_q, heads_q, head_dim]",
                     q=np.zeros((5, 8), np.float32))
        self.refuses(ValueError, "v is ", "[batch, heads_kv, seqlen_kv, head_dim_v]", v=self.v[0], layout="bhsd")
        self.refuses(ValueError, "k", "numpy.ndarray float32 [2, 7, 3, 8] on cpu", k=self.source.normal(2, 7, 3, 8))
        self.refuses(ValueError, "heads_q is 4 and heads_kv is 3", k=self.source.normal(2, 7, 3, 8),
                     v=self.source.normal(2, 7, 3, 8))
        self.refuses(ValueError, "v has shape [2, 6, 2, 8]", "float32", "cpu", v=self.v[:, :6])
        self.refuses(ValueError, "batch", k=self.k[:1])
        self.refuses(ValueError, "k has shape [2, 7, 2, 7]", "cpu", k=self.source.normal(2, 7, 2, 7))
        self.refuses(ValueError, "head_dim is 0", q=self.q[..., :0], k=self.k[..., :0])
        self.refuses(ValueError, "kv_lengths has shape [3]", "numpy.ndarray int32 [3] on cpu", kv_lengths=integers(1, 2, 3))
        self.refuses(ValueError, "kv_ranges", "[batch, seqlen_q, 2]", kv_ranges=np.zeros((2, 5), np.int32))
        self.refuses(ValueError, "sinks", "[heads_q]", sinks=self.source.normal(3))
        self.refuses(ValueError, "bias_shape", "[2, 4, 5, 7]", bias=self.source.normal(5, 6))
        self.refuses(TypeError, "mask cannot be read", "accepted: 0 to 4", mask=np.ones((1, 2, 4, 5, 7), bool))
        self.refuses(ValueError, "cu_seqlens_q", cu_seqlens_q=np.zeros(0, np.int32), q=self.q[0])
        self.refuses(ValueError, "q is numpy.ndarray", "3 dimensions", cu_seqlens_q=integers(0, 5))

    def test_types(self):
        self.refuses(TypeError, "q cannot be read", "float64 [2, 5, 4, 8] on cpu", q=self.q.astype(np.float64))
        self.refuses(TypeError, "k is list", "accepted: an array", k=[1, 2])
        self.refuses(TypeError, "v is NoneType None", v=NOTHING)
        self.refuses(ValueError, "kv_lengths is i64", "int64 [2] on cpu", kv_lengths=np.array([1, 2]))
        self.refuses(ValueError, "mask_shape is [1, 1, 5, 56]", "uint8 [5, 7]", mask=np.ones((5, 7), np.uint8))  # bits
        self.refuses(ValueError, "dtype_mask is f32", "bias", mask=np.ones((5, 7), np.float32))
        self.refuses(ValueError, "alibi_slopes is f16", alibi_slopes=np.ones(4, np.float16))
        self.refuses(TypeError, "q cannot be read", ">f4", q=self.q.astype(">f4"))
        self.refuses(NotImplementedError, "forward_", "f16", k=self.k.astype(np.float16), v=self.v.astype(np.float16))

    def test_memory(self):
        self.refuses(ValueError, "q has innermost stride 2", "[2, 5, 4, 8] on cpu",
                     q=np.zeros((2, 5, 4, 16), np.float32)[..., ::2])
        self.refuses(ValueError, "out has innermost stride", out=np.zeros((2, 5, 4, 16), np.float32)[..., ::2])
        closed = np.zeros((2, 5, 4, 8), np.float32)
        closed.flags.writeable = False
        self.refuses(ValueError, "out is read-only", "out: numpy.ndarray", out=closed)
        self.refuses(ValueError, "out", out=self.q)
        self.refuses(ValueError, "out", out=np.broadcast_to(np.zeros((1, 1, 1, 8), np.float32), (2, 5, 4, 8)))
        self.refuses(ValueError, "out has shape", out=np.zeros((2, 5, 4, 7), np.float32))
        self.refuses(TypeError, "out is str", out="o")
        odd = np.frombuffer(bytearray(4 * 320 + 1), np.uint8)[1:].view(np.float32).reshape(2, 5, 4, 8)
        self.refuses(ValueError, "q is not aligned", q=odd)

    def test_read_only_inputs_are_fine(self):
        for array in (self.q, self.k, self.v):
            array.flags.writeable = False
        self.assertEqual(tilewise.attention(self.q, self.k, self.v).shape, (2, 5, 4, 8))

    def test_scalars(self):
        self.refuses(ValueError, "layout is 'sbhd'", layout="sbhd")
        self.refuses(ValueError, "causal is 'left'", "top-left", causal="left")
        self.refuses(TypeError, "window_size is 4", "sliding_window", window_size=4)
        self.refuses(TypeError, "window_size is float", window_size=(1.5, 0))
        self.refuses(ValueError, "window_left is -2", window_size=(-2, 0))
        self.refuses(TypeError, "softmax_scale is str", softmax_scale="1")
        self.refuses(ValueError, "softmax_scale is inf", softmax_scale=float("inf"))
        self.refuses(ValueError, "softcap is -1", softcap=-1)
        self.refuses(TypeError, "softcap is NoneType", softcap=None)
        self.refuses(ValueError, "dropout_p is 1", dropout_p=1.0, dropout_seed=1)
        self.refuses(ValueError, "without a seed", dropout_p=0.5)
        self.refuses(TypeError, "dropout_seed is float", dropout_p=0.5, dropout_seed=1.5)
        self.refuses(TypeError, "q_offset is float", q_offset=1.5)
        self.refuses(ValueError, "q_offset", q_offset=2**61)
        self.refuses(ValueError, "one of the two", q_offset=0, causal="top-left")
        self.refuses(TypeError, "seqlen_q is", seqlen_q="a", cu_seqlens_q=integers(0, 10), q=self.q.reshape(10, 4, 8))

    def test_what_would_be_lost_or_misunderstood(self):
        """A mask that NumPy carries along, the word "false", an array where a word belongs, a word that attention() does not know."""
        masked = np.ma.masked_array(self.k, self.k > 0)
        self.refuses(TypeError, "k is numpy.MaskedArray float32 [2, 7, 2, 8] on cpu", ".filled()", k=masked)
        for value in ("false", "bshd", 2, 0.5, [], object(), np.ones(2, bool)):
            self.refuses(TypeError, "batch_invariant is ", "accepted: True or False", batch_invariant=value)
        for value in (np.bool_(True), 1, None, np.array(False)):
            tilewise.attention(self.q, self.k, self.v, batch_invariant=value)
        for value in (np.ones((2, 2)), np.ones((0, 2)), 1, b"bshd"):
            self.refuses(ValueError, "layout is ", "bhsd", layout=value)
        rows = np.zeros(1, np.int32)
        for name, call in (("plan", lambda **x: tilewise.plan(self.q, self.k, self.v, **x)),
                           ("explain", lambda **x: tilewise.explain(self.q, self.k, self.v, **x)),
                           ("verify", lambda **x: tilewise.verify(self.q, self.k, self.v, **x)),
                           ("attention_weights", lambda **x: tilewise.attention_weights(self.q, self.k, rows, **x)),
                           ("attention_backward", lambda **x: tilewise.attention_backward(self.q, self.q, self.k, self.v, None, None, **x))):
            with self.assertRaisesRegex(TypeError, f"^{name}\\(\\) got an unexpected keyword argument 'windw'"):
                call(windw=3)

    def test_no_plan_of_what_would_be_refused(self):
        for changes, words in (({"k": self.source.normal(2, 7, 2, 9)}, r"^k has shape \[2, 7, 2, 9\]"),
                               ({"v": self.v[:, :6]}, r"^v has shape \[2, 6, 2, 8\]"),
                               ({"kv_lengths": np.ones(3, np.int32)}, r"^kv_lengths has shape \[3\]"),
                               ({"cache_batch_idx": np.zeros(2, np.float16)}, "^cache_batch_idx is f16")):
            for ask in (tilewise.plan, tilewise.explain, tilewise.attention):
                with self.subTest(ask=ask.__name__, changes=list(changes)), self.assertRaisesRegex(ValueError, words):
                    ask(**{"q": self.q, "k": self.k, "v": self.v, **changes})

    def test_weights_speak_of_k(self):
        rows = np.zeros(1, np.int32)
        with self.assertRaisesRegex(ValueError, r"^k is numpy.ndarray float32 \[7, 2, 8\] on cpu"):
            tilewise.attention_weights(self.q, self.k[0], rows)
        with self.assertRaisesRegex(ValueError, r"^cu_seqlens_kv is numpy.ndarray int32 \[\] on cpu"):
            tilewise.attention_weights(self.q, self.k[0], rows, cu_seqlens_kv=np.array(5, np.int32))
        k8 = self.k.astype(np.int8)
        scales = np.full((2, 2), 0.5, np.float32)
        got = tilewise.attention_weights(self.q, k8, rows, k_scales=scales)
        np.testing.assert_allclose(got, tilewise.attention_weights(self.q, k8 * np.float32(0.5), rows), atol=1e-6)

    def test_packed_longer_than_said(self):
        self.refuses(ValueError, "cu_seqlens_q gives sequence 0 7 rows", q=self.source.normal(7, 4, 8), k=self.k[:1],
                     v=self.v[:1], cu_seqlens_q=integers(0, 7), seqlen_q=5)

    def test_backward(self):
        o, lse = tilewise.attention(self.q, self.k, self.v, return_lse=True)

        def refuses(kind, word, *, dout=o, lse=lse, **options):
            with self.assertRaises(kind) as caught:
                tilewise.attention_backward(dout, self.q, self.k, self.v, o, lse, **options)
            self.assertIn(word, str(caught.exception))

        refuses(ValueError, "dout has shape", dout=o[:, :4])
        refuses(ValueError, "lse", lse=lse[:, :2])
        refuses(ValueError, "wants has 'dp', which is no gradient", wants=("dp",))
        for wants in ("dq", 3, True, np.ones(2), float("nan")):
            refuses(TypeError, "wants is ", wants=wants)
        refuses(ValueError, "dbias without bias", wants=("dbias",))
        refuses(ValueError, "accumulate", accumulate=True, out={"dq": self.q.astype(np.float16)})
        refuses(ValueError, "dlse", dlse=lse[:1])
        refuses(TypeError, "unexpected keyword", scale=1)

    def test_merge_and_weights(self):
        o, lse = tilewise.attention(self.q, self.k, self.v, return_lse=True)
        with self.assertRaisesRegex(ValueError, r"lse_part.*numpy.ndarray float32 \[2, 4, 4\] on cpu"):
            tilewise.merge(o, lse, o.copy(), lse[..., :4].copy())
        with self.assertRaisesRegex(ValueError, r"rows\[1\] is 5; accepted: 0 to 4"):
            tilewise.attention_weights(self.q, self.k, integers(0, 5))
        with self.assertRaisesRegex(ValueError, "layout"):
            tilewise.merge(o, lse, o, lse, layout="thd")

    def test_no_kernel_lists_every_one(self):
        with self.assertRaises(NotImplementedError) as caught:
            tilewise.attention(*(self.source.normal(1, 2, 1, 600) for _ in range(3)))
        self.assertIn("head_dim", str(caught.exception))
        self.assertGreater(len(str(caught.exception).splitlines()), 3)


class Managed(ctypes.Structure):
    """DLManagedTensor of DLPack 0.x."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Elsewhere:
    """A float32 array that says it is on another device. Nothing may read its memory."""

    def __init__(self, shape, device):
        self.shape, self.dtype, self.device, self.where = shape, np.dtype(np.float32), f"device {device}", device
        self.sizes = (ctypes.c_int64 * len(shape))(*shape)
        self.managed = Managed(8, *device, len(shape), 2, 32, 1, self.sizes, None, 0, None, None)

    def __dlpack__(self, stream=None):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self):
        return self.where

    def __array_namespace__(self):
        return self

    def empty(self, shape, dtype, device):
        return Elsewhere(shape, self.where)


class Devices(unittest.TestCase):
    def test_another_than_qs(self):
        q = np.ones((1, 2, 1, 4), np.float32)
        with self.assertRaisesRegex(ValueError, r"k is on CUDA device 1; accepted: the CPU.*float32 \[1, 2, 1, 4\] on device"):
            tilewise.attention(q, Elsewhere((1, 2, 1, 4), (2, 1)), q)

    def test_unknown_ones(self):
        q = Elsewhere((1, 2, 1, 4), (9, 0))
        with self.assertRaisesRegex(TypeError, "q cannot be read as an array: .*device type 9; accepted: 1 .CPU., 2 .CUDA."):
            tilewise.attention(q, q, q)

    @unittest.skipUnless(isinstance(tilewise.info()["cuda"], str), "there is a CUDA device")
    def test_cuda_where_there_is_none(self):
        q = Elsewhere((1, 2, 1, 4), (2, 0))
        with self.assertRaisesRegex(RuntimeError, "CUDA"):
            tilewise.attention(q, q, q)


class ZeroSizes(unittest.TestCase):
    def test_nothing_to_attend_to(self):
        q, k = np.ones((2, 3, 2, 4), np.float32), np.ones((2, 0, 2, 4), np.float32)
        o, lse = tilewise.attention(q, k, k, return_lse=True)
        self.assertTrue((o == 0).all() and np.isneginf(lse).all())
        o, lse = tilewise.attention(q, k, k, sinks=np.array([1.0, 2.0], np.float32), return_lse=True)
        np.testing.assert_array_equal(lse[0, :, 0], [1, 2])

    def test_no_rows(self):
        empty, k = np.ones((2, 0, 2, 4), np.float32), np.ones((2, 3, 2, 4), np.float32)
        self.assertEqual(tilewise.attention(empty, k, k).shape, (2, 0, 2, 4))
        o, lse = tilewise.attention(k[:0], k[:0], k[:0], return_lse=True)
        self.assertEqual((o.shape, lse.shape), ((0, 3, 2, 4), (0, 2, 3)))
        gradients = tilewise.attention_backward(o, k[:0], k[:0], k[:0], o, lse)
        self.assertEqual(gradients.dq.shape, (0, 3, 2, 4))


if __name__ == "__main__":
    unittest.main()
