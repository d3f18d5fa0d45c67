"""Arrays of every framework come in and go out: type, device, strides, read-only ones, bfloat16; absent ones are skipped."""

import unittest
from importlib.util import find_spec

import numpy as np
from arrays import BFLOAT16, Source

import tilewise


class OldProducer:
    """DLPack 0.x and the array API, over NumPy: no max_version, results by __array_namespace__."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.device = array, array.shape, array.dtype, "cpu"

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return 1, 0

    def __array_namespace__(self):
        return np


class NumPy(unittest.TestCase):
    def test_results_are_like_q(self):
        q, k, v = Source(1).qkv()
        o, lse = tilewise.attention(q, k, v, return_lse=True)
        self.assertIs(type(o), np.ndarray)
        self.assertEqual((o.dtype, o.shape, lse.dtype, lse.shape), (np.float32, (2, 37, 4, 24), np.float32, (2, 4, 37)))

    def test_out_is_written_and_returned(self):
        q, k, v = Source(1).qkv()
        out = np.full((2, 37, 8, 24), 7.0)[:, :, ::2].astype(np.float32)
        wide = np.full((2, 37, 4, 30), 7, np.float32)
        for target in (out, wide[..., 3:27]):
            self.assertIs(tilewise.attention(q, k, v, out=target), target)
            np.testing.assert_array_equal(target, tilewise.attention(q, k, v))
        self.assertTrue((wide[..., :3] == 7).all() and (wide[..., 27:] == 7).all())

    def test_fp32_out_of_16_bits(self):
        q, k, v = Source(1).qkv(dtype=np.float16)
        out = np.empty((2, 37, 4, 24), np.float32)
        tilewise.attention(q, k, v, out=out)
        np.testing.assert_allclose(out, tilewise.attention(q, k, v), atol=2e-3)

    @unittest.skipUnless(BFLOAT16, "ml_dtypes is not installed")
    def test_bfloat16(self):
        q, k, v = Source(2).qkv(dtype=BFLOAT16)
        o = tilewise.attention(q, k, v)
        self.assertEqual(o.dtype, BFLOAT16)
        want = tilewise.attention(*(x.astype(np.float32) for x in (q, k, v)))
        np.testing.assert_allclose(o.astype(np.float32), want, atol=0.02)
        self.assertIs(tilewise.attention(q, k, v, out=o), o)
        q.flags.writeable = False
        self.assertTrue(np.array_equal(tilewise.attention(q, k, v), o))
        o.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "out is read-only"):
            tilewise.attention(q, k, v, out=o)

    def test_strides(self):
        q, k, v = Source(3).qkv()
        reversed_rows = tilewise.attention(q[:, ::-1], k, v)
        np.testing.assert_array_equal(reversed_rows, tilewise.attention(q, k, v)[:, ::-1])
        one = np.broadcast_to(k[:1], k.shape)
        np.testing.assert_array_equal(tilewise.attention(q, one, v), tilewise.attention(q, one.copy(), v))

    def test_a_producer_of_old_dlpack(self):
        q, k, v = Source(4).qkv()
        want = tilewise.attention(q, k, v)
        got = tilewise.attention(*(OldProducer(x) for x in (q, k, v)))
        self.assertIs(type(got), np.ndarray)
        np.testing.assert_array_equal(got, want)

    def test_frameworks_may_be_mixed(self):
        q, k, v = Source(5).qkv()
        np.testing.assert_array_equal(tilewise.attention(q, OldProducer(k), v), tilewise.attention(q, k, v))


class WithTorch:
    @classmethod
    def setUpClass(cls):
        import torch

        cls.torch = torch

    def qkv(self, dtype=None):
        return [self.torch.from_numpy(x).to(dtype or self.torch.float32) for x in Source(1).qkv()]


@unittest.skipUnless(find_spec("torch"), "PyTorch is not installed")
class PyTorch(WithTorch, unittest.TestCase):
    def test_results_are_like_q(self):
        for dtype in (self.torch.float32, self.torch.float16, self.torch.bfloat16):
            q, k, v = self.qkv(dtype)
            o, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
            self.assertIs(type(o), self.torch.Tensor)
            self.assertEqual((o.dtype, o.shape, lse.dtype), (dtype, (2, 37, 4, 24), self.torch.float32))
            self.assertTrue(tilewise.verify(q, k, v, causal=True, dout=self.torch.ones_like(o)).passed)

    def test_threads_follow_torch(self):
        before = self.torch.get_num_threads()
        try:
            for threads in (1, 2):
                self.torch.set_num_threads(threads)
                q = self.torch.ones(1, 512, 4, 64)
                self.assertEqual(tilewise.plan(q, q, q).threads, threads)
        finally:
            self.torch.set_num_threads(before)

    def test_refusals(self):
        q, k, v = self.qkv()
        with self.assertRaisesRegex(ValueError, r"q has innermost stride .*torch.Tensor float32 \[2, 37, 4, 16\] on cpu"):
            tilewise.attention(self.torch.zeros(2, 37, 4, 32)[..., ::2], k, v)
        with self.assertRaisesRegex(TypeError, "k cannot be read.*on meta"):
            tilewise.attention(q, k.to("meta"), v)
        with self.assertRaisesRegex(TypeError, "q cannot be read.*float64"):
            tilewise.attention(q.double(), k, v)


@unittest.skipUnless(find_spec("jax"), "JAX is not installed")
class Jax(unittest.TestCase):
    def test_eager(self):
        import jax

        q, k, v = Source(1).qkv()
        for dtype in ("float32", "bfloat16"):
            with jax.default_device(jax.devices("cpu")[0]):
                arrays = [jax.numpy.asarray(x).astype(dtype) for x in (q, k, v)]
            o, lse = tilewise.attention(*arrays, return_lse=True)
            self.assertIsInstance(o, jax.Array)
            self.assertEqual((o.dtype, o.shape, lse.dtype), (dtype, (2, 37, 4, 24), "float32"))
            self.assertTrue(tilewise.verify(*arrays).passed)

    def test_every_option_that_is_an_array(self):
        import jax

        with jax.default_device(jax.devices("cpu")[0]):
            q, k, v = (jax.numpy.asarray(x) for x in Source(2).qkv())
            lengths, bias = jax.numpy.asarray([30, 41], "int32"), jax.numpy.asarray(Source(3).normal(4, 1, k.shape[1]))
            options = {"kv_lengths": lengths, "bias": bias, "mask": bias[0] > -1, "sinks": jax.numpy.ones(4), "causal": True}
            o, lse = tilewise.attention(q, k, v, return_lse=True, **options)
            plain = {name: np.asarray(x) for name, x in options.items() if name != "causal"}
            want = tilewise.attention(*(np.asarray(x) for x in (q, k, v)), causal=True, **plain)
            np.testing.assert_array_equal(np.asarray(o), want)
            found = tilewise.attention_backward(jax.numpy.ones_like(o), q, k, v, o, lse, **options)
            self.assertTrue(all(isinstance(x, jax.Array) for x in found))
            self.assertTrue(tilewise.verify(q, k, v, dout=jax.numpy.ones_like(o), **options).passed)
            with self.assertRaisesRegex(TypeError, "out is .*accepted: an array that can be written"):
                tilewise.attention(q, k, v, out=o)

    def test_under_a_transformation_is_refused(self):
        import jax

        x = jax.numpy.ones((1, 2, 1, 4))
        for transformed in (jax.jit(lambda q: tilewise.attention(q, q, q)), jax.grad(lambda q: tilewise.attention(q, q, q).sum()),
                            jax.vmap(lambda q: tilewise.attention(q[None], q[None], q[None]))):
            with self.assertRaisesRegex(TypeError, "q is a JAX tracer; accepted: .*outside of jax.jit"):
                transformed(x)

    def test_within_a_pure_callback(self):
        """As the refusal advises."""
        import jax

        with jax.default_device(jax.devices("cpu")[0]):
            x = jax.numpy.asarray(Source(4).normal(1, 5, 2, 8))
            o = jax.jit(lambda q: jax.pure_callback(lambda q: tilewise.attention(q, q, q), q, q))(x)
            np.testing.assert_allclose(np.asarray(o), np.asarray(tilewise.attention(x, x, x)), atol=1e-6)


if __name__ == "__main__":
    unittest.main()
