"""What only a GPU has: streams, graphs, several devices, CuPy's and JAX's arrays, memory of the stream's pool."""

import os
import subprocess
import sys
import unittest
from importlib.util import find_spec
from unittest import mock

from arrays import Source, in_threads
from devices import GPU, no_gpu

if no_gpu():
    raise unittest.SkipTest(f"nothing runs on a GPU: {no_gpu()}")

import torch
from torch.nn.functional import scaled_dot_product_attention as theirs

import tilewise
from tilewise.torch import attention

TYPES = (torch.float32, torch.float16, torch.bfloat16)


def qkv(seed, dtype=torch.bfloat16, rows=300, keys=420, dim=64, grad=False):
    """q [2, rows, 8, dim], k and v [2, keys, 2, dim] on the GPU."""
    source = Source(seed)
    return [torch.from_numpy(source.normal(2, n, heads, dim)).to(GPU, dtype).requires_grad_(grad)
            for n, heads in ((rows, 8), (keys, 2), (keys, 2))]


def exact(q, k, v, causal=False):
    """PyTorch's three-step formula in fp64; causal from the bottom-right corner."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
    return theirs(q, k, v, attn_mask=mask if causal else None, enable_gqa=True).transpose(1, 2)


def close(got, want, dtype=torch.bfloat16):
    unit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    torch.testing.assert_close(got.double(), want, atol=unit, rtol=unit)


class Streams(unittest.TestCase):
    def test_against_pytorchs_formula_in_fp64(self):
        for dtype in TYPES:
            for dim in (64, 128):
                q, k, v = qkv(1, dtype, dim=dim)
                for causal in (False, True):
                    with self.subTest(dtype=dtype, dim=dim, causal=causal):
                        o, lse = tilewise.attention(q, k, v, causal=causal, return_lse=True)
                        self.assertEqual((o.device, o.dtype, lse.device), (q.device, dtype, q.device))
                        close(o, exact(q, k, v, causal), dtype)

    def test_the_callers_current_stream(self):
        """Inputs that a slow stream still computes are read after it, without a wait of the host."""
        q, k, v = qkv(2)
        want, stream = exact(q * 2, k, v), torch.cuda.Stream()
        torch.cuda.synchronize()
        for call in (tilewise.attention, attention):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000_000)
                o = call(q * 2, k, v)
                done = torch.cuda.Event()
                done.record(stream)
            self.assertFalse(done.query(), "the call waited")
            done.synchronize()
            close(o, want)

    def test_many_streams_and_threads(self):
        q, k, v = qkv(3)
        want = tilewise.attention(q, k, v, causal=True)
        torch.cuda.synchronize()

        def work(_):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    o = tilewise.attention(q, k, v, causal=True)
                torch.cuda.current_stream().synchronize()
            return o

        for o in in_threads(6, work):
            self.assertTrue(torch.equal(o, want))

    def test_backward_follows_the_formula(self):
        leaves = qkv(4, torch.float32, grad=True)
        o = attention(*leaves, causal=True)
        dout = torch.randn_like(o)
        got = torch.autograd.grad(o, leaves, dout)
        wide = [x.detach().double().requires_grad_() for x in leaves]
        want = torch.autograd.grad(exact(*wide, causal=True), wide, dout.double())
        for a, b in zip(got, want):
            torch.testing.assert_close(a.double(), b, atol=2e-5, rtol=1e-4)

    def test_packed(self):
        q, k, v = (x.flatten(0, 1) for x in qkv(5))
        lengths = (100, 0, 320, 180), (200, 7, 403, 230)
        cu_q, cu_kv = (torch.tensor([0, *n], dtype=torch.int32, device=GPU).cumsum(0).int() for n in lengths)
        o = tilewise.attention(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, seqlen_q=320, seqlen_kv=403)
        at_q = at_kv = 0
        for n_q, n_kv in zip(*lengths):
            part = q[None, at_q:at_q + n_q], k[None, at_kv:at_kv + n_kv], v[None, at_kv:at_kv + n_kv]
            if n_q:
                close(o[None, at_q:at_q + n_q], exact(*part, causal=True))
            at_q, at_kv = at_q + n_q, at_kv + n_kv
        with self.assertRaisesRegex(ValueError, "no longest sequence and cu_seqlens_q is on a device; accepted: seqlen set"):
            tilewise.attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv)


class Graphs(unittest.TestCase):
    def capture(self, function):
        """`function` called three times on another stream, as PyTorch asks, then captured."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = function()
        return graph, result

    def test_forward(self):
        for rows, keys in ((300, 420), (1, 4000)):  # the second may be split, with scratch
            q, k, v = qkv(6, rows=rows, keys=keys)
            lengths = torch.tensor([keys, keys // 2], dtype=torch.int32, device=GPU)
            graph, o = self.capture(lambda q=q, k=k, v=v, n=lengths: attention(q, k, v, causal=True, kv_lengths=n))
            for x in (q, k, v):
                x.copy_(torch.randn_like(x))
            lengths.copy_(torch.tensor([keys, keys]))
            graph.replay()
            close(o, exact(q, k, v, causal=True))

    def test_a_training_step(self):
        q, k, v = qkv(7, grad=True)

        def step():
            return torch.autograd.grad(attention(q, k, v, causal=True).float().square().sum(), (q, k, v))

        want = [x.clone() for x in step()]
        graph, got = self.capture(step)
        graph.replay()
        for a, b in zip(got, want):
            torch.testing.assert_close(a.float(), b.float(), atol=2e-2, rtol=2e-2)

    def test_dropout_of_a_replay_is_new(self):
        q, k, v = qkv(8)
        graph, o = self.capture(lambda: attention(q, k, v, dropout_p=0.5))
        graph.replay()
        first = o.clone()
        graph.replay()
        self.assertFalse(torch.equal(first, o))

    def test_compiled_by_inductor_in_one_graph(self):
        q, k, v = qkv(9)
        step = lambda q: attention(q * 2, k, v, causal=True) + 1  # noqa: E731
        try:
            got = torch.compile(step, fullgraph=True)(q)
        except torch._inductor.exc.InductorError as error:
            self.skipTest(f"torch.compile does not run here: {str(error).splitlines()[0]}")
        close(got, exact(q * 2, k, v, causal=True) + 1)


class Devices(unittest.TestCase):
    def test_mixed_ones_name_the_argument(self):
        q, k, v = qkv(10)
        lengths = torch.tensor([3, 4], dtype=torch.int32)
        for call in (tilewise.attention, attention):
            for arrays, options, name, where in (((q, k.cpu(), v), {}, "k", "CUDA device 0"),
                                                 ((q, k, v.cpu()), {}, "v", "CUDA device 0"),
                                                 ((q.cpu(), k, v), {}, "k", "the CPU"),
                                                 ((q, k, v), {"kv_lengths": lengths}, "kv_lengths", "CUDA device 0"),
                                                 ((q, k, v), {"mask": torch.ones(300, 420, dtype=torch.bool)}, "mask", "CUDA")):
                with self.subTest(name=name, where=where), \
                     self.assertRaisesRegex(ValueError, f"^{name} is on .*; accepted: {where}.*torch.Tensor"):
                    call(*arrays, **options)
        with self.assertRaisesRegex(ValueError, "^out is on the CPU; accepted: CUDA device 0"):
            tilewise.attention(q, k, v, out=torch.empty(2, 300, 8, 64, dtype=torch.bfloat16))
        with self.assertRaisesRegex(ValueError, "^k is on the CPU.*numpy.ndarray"):
            tilewise.attention(q, k.float().cpu().numpy(), v)

    def test_attention_weights(self):
        q, k, _ = qkv(11, torch.float32)
        rows = torch.tensor([0, 7, 299], dtype=torch.int32)
        weights = tilewise.attention_weights(q, k, rows.cuda(), causal=True)
        self.assertEqual(weights.device, q.device)
        self.assertTrue(torch.equal(weights.cpu(), tilewise.attention_weights(q.cpu(), k.cpu(), rows, causal=True)))
        with self.assertRaisesRegex(ValueError, "^rows is on the CPU; accepted: CUDA device 0"):
            tilewise.attention_weights(q, k, rows)

    def test_out_types_and_strides(self):
        q, k, v = qkv(12)
        wide = torch.full((2, 300, 8, 80), 7.0, device=GPU)
        out = tilewise.attention(q, k, v, out=wide[..., 8:72])
        close(out, exact(q, k, v))
        self.assertTrue((wide[..., :8] == 7).all() and (wide[..., 72:] == 7).all())
        bhsd = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        close(tilewise.attention(*bhsd, layout="bhsd").transpose(1, 2), exact(q, k, v))
        one = k[:, :1].expand(-1, 420, -1, -1)
        close(tilewise.attention(q, one, v), exact(q, one, v))

    def test_plans_and_info(self):
        q, k, v = qkv(13)
        self.assertRegex(tilewise.plan(q, k, v).kernel, "^forward_(sm90|sm80|simt)_")
        self.assertIn("forward_simt_", tilewise.explain(q, k, v))
        self.assertTrue(tilewise.info()["cuda"][0]["name"])

    def test_the_variables_of_the_environment(self):
        code = """
import numpy as np, tilewise, torch
q = np.ones((1, 300, 1, 64), np.float32)
print(tilewise.plan(q, q, q).kernel, tilewise.attention(q, q, q).shape)
t = torch.ones(1, 300, 1, 64, device="cuda")
print(tilewise.plan(t, t, t).kernel, tilewise.attention(t, t, t).device)
"""
        done = {}
        for device in ("", "cuda", "cpu"):
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200,
                                 env={**os.environ, "TILEWISE_DEVICE": device})
            self.assertEqual(run.returncode, 0, run.stderr)
            done[device] = run.stdout.split("\n")
            self.assertIn("(1, 300, 1, 64)", done[device][0])
            self.assertIn("cuda:0", done[device][1])
        of_cuda = "^forward_(sm90|sm80|simt)_"
        self.assertNotRegex(done[""][0], of_cuda)
        self.assertRegex(done[""][1], of_cuda)
        self.assertRegex(done["cuda"][0], of_cuda)
        self.assertNotRegex(done["cpu"][1], of_cuda)

    def test_memory_does_not_grow(self):
        q, k, v = qkv(14, rows=1, keys=4000)
        for _ in range(3):
            attention(q, k, v)
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        for _ in range(200):
            attention(q, k, v)
        torch.cuda.synchronize()
        self.assertLess(before - torch.cuda.mem_get_info()[0], 64 << 20)

    def test_the_gil_is_free(self):
        """Calls of the host return while a kernel of seconds would still run: nothing waits."""
        import time

        q, k, v = qkv(15)
        tilewise.attention(q, k, v)
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000_000)
        start = time.perf_counter()
        for _ in range(10):
            tilewise.attention(q, k, v)
        taken = time.perf_counter() - start
        torch.cuda.synchronize()
        self.assertLess(taken, 0.25)


@unittest.skipUnless(hasattr(torch.nn.attention, "activate_flash_attention_impl"), "this PyTorch has no registry")
class Registry(unittest.TestCase):
    def test_pytorchs_own_function(self):
        from torch.nn.attention import SDPBackend, activate_flash_attention_impl, restore_flash_attention_impl, sdpa_kernel
        from tilewise import _torch_sdpa as provider

        leaves = [x.transpose(1, 2).detach().requires_grad_() for x in qkv(18, rows=300, keys=300)]
        wide = [x.detach().double().requires_grad_() for x in leaves]
        want = theirs(*wide, is_causal=True, enable_gqa=True)
        activate_flash_attention_impl("tilewise")
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION), mock.patch.object(provider, "forward", wraps=provider.forward) as seen:
                o = theirs(*leaves, is_causal=True, enable_gqa=True)
            self.assertEqual(seen.call_count, 1)
            close(o, want)
            dout = torch.randn_like(o)
            got = torch.autograd.grad(o, leaves, dout)
            for a, b in zip(got, torch.autograd.grad(want, wide, dout.double())):
                torch.testing.assert_close(a.double(), b, atol=5e-2, rtol=5e-2)
        finally:
            restore_flash_attention_impl()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            close(theirs(*leaves, is_causal=True, enable_gqa=True), want)


@unittest.skipUnless(find_spec("cupy"), "CuPy is not installed")
class CuPy(unittest.TestCase):
    def test_results_are_like_q_on_its_current_stream(self):
        import cupy

        host = Source(16).qkv()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            q, k, v = map(cupy.asarray, host)
            o, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
            stream.synchronize()
        self.assertIsInstance(o, cupy.ndarray)
        self.assertEqual((o.dtype, o.shape, lse.dtype), (q.dtype, (2, 37, 4, 24), "float32"))
        self.assertTrue(tilewise.verify(q, k, v, causal=True).passed)
        half = [x.astype(cupy.float16) for x in (q, k, v)]
        self.assertTrue(tilewise.verify(*half).passed)

    def test_beside_tensors_of_another_stream(self):
        """k and v come from PyTorch's stream, which is slow; q's stream waits for it, not the host."""
        import cupy

        q, k, v = qkv(17, torch.float32)
        want = exact(q, k * 2, v)
        ours = cupy.from_dlpack(q)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()), cupy.cuda.Stream(non_blocking=True) as stream:
            torch.cuda._sleep(100_000_000)
            o = tilewise.attention(ours, k * 2, v)
            stream.synchronize()
        close(torch.from_dlpack(o), want, torch.float32)


@unittest.skipUnless(find_spec("jax"), "JAX is not installed")
class Jax(unittest.TestCase):
    def test_results_wait_for_inputs_and_are_done(self):
        """Inputs that JAX still computes are read after that; later work of JAX finds results that are done."""
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's tests want memory too
        import jax

        if jax.default_backend() == "cpu":
            self.skipTest("JAX sees no GPU")
        gpu, step = jax.devices("gpu")[0], jax.jit(lambda x: x * 2)
        for dtype, rows in (("float32", 37), ("bfloat16", 37), ("bfloat16", 2048)):
            with self.subTest(dtype=dtype, rows=rows), jax.default_device(gpu):
                q, k, v, dout = (step(jax.numpy.asarray(Source(n).normal(2, rows, 4, 64) / 2).astype(dtype)) for n in range(4))
                o, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
                twice = step(o)
                self.assertIsInstance(o, jax.Array)
                self.assertEqual((o.devices(), o.dtype, lse.shape), ({gpu}, dtype, (2, 4, rows)))
                self.assertTrue((twice == o * 2).all())
                again = tilewise.attention(q, k, v, causal=True)
                self.assertTrue((again == o).all())
                if rows < 100:
                    self.assertTrue(tilewise.verify(q, k, v, dout=dout, causal=True).passed)


if __name__ == "__main__":
    unittest.main()
