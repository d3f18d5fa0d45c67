"""Caches of keys: pages and slots read as the same keys in a row, and rows appended where they belong."""

import os
import subprocess
import sys
import unittest

import numpy as np
from arrays import BFLOAT16, DTYPES, FLOAT8, Source, integers
from devices import OnDevice, floats, on_every_device

import tilewise


# Kernels round differently, so the same bits need the same kernel: this runs with TILEWISE_KERNEL.
ONE_KERNEL = """
import numpy as np, tilewise
from arrays import Source, integers
from test_cache import Paged
source = Source(7)
for page_size, max_pages in ((1, 96), (3, 32), (16, 6)):
    paged = Paged(source, page_size, max_pages)
    q = source.normal(3, 2, 4, 16)
    options = {"kv_lengths": integers(96, 51, 17), "causal": True, "return_lse": True}
    got = tilewise.attention(q, paged.k, paged.v, page_table=paged.table, **options)
    want = tilewise.attention(q, paged.in_a_row(paged.k), paged.in_a_row(paged.v), **options)
    assert all(np.array_equal(a, b) for a, b in zip(got, want)), page_size
    slots = integers(4, 0, 4)
    k, v = source.normal(5, 96, 2, 16), source.normal(5, 96, 2, 24)
    got = tilewise.attention(q, k, v, cache_batch_idx=slots, **options)
    want = tilewise.attention(q, k[slots], v[slots], **options)
    assert all(np.array_equal(a, b) for a, b in zip(got, want)), "slots"
print("equal")
"""


class Paged:
    """Keys of `batch` sequences in pages, in any order among pages of others, and the same keys in a row."""

    def __init__(self, source, page_size, max_pages, batch=3, heads=2, dim=16, dim_v=24, dtype=np.float32):
        pages = batch * max_pages + 5
        self.k, self.v = (source.normal(pages, page_size, heads, d, dtype=dtype) for d in (dim, dim_v))
        self.table = source.rng.permutation(pages)[:batch * max_pages].reshape(batch, max_pages).astype(np.int32)
        self.capacity = max_pages * page_size

    def in_a_row(self, pages):
        return pages[self.table].reshape(len(self.table), self.capacity, *pages.shape[2:])


def rotated(x, cos, sin, interleaved):
    """x [..., D] turned by cos and sin [..., R / 2], as BERT-style code does it, in fp32."""
    x, half = x.astype(np.float32), cos.shape[-1]
    first, second = (x[..., 0:2 * half:2], x[..., 1:2 * half:2]) if interleaved else (x[..., :half], x[..., half:2 * half])
    turned = first * cos - second * sin, second * cos + first * sin
    turned = np.stack(turned, -1).reshape(*x.shape[:-1], 2 * half) if interleaved else np.concatenate(turned, -1)
    return np.concatenate([turned, x[..., 2 * half:]], -1)


@on_every_device
class Reading(OnDevice):
    def setUp(self):
        self.source = Source(1)

    def attend(self, *arrays, **options):
        """o and lse by NumPy, of the device."""
        options = {name: self.put(x) for name, x in options.items()}
        return tilewise.attention(*map(self.put, arrays), return_lse=True, **options)

    def same(self, q, paged, **options):
        """The numbers of k and v that are no cache; on the CPU, whose kernel is one, the bits of one page a sequence."""
        k, v = paged.in_a_row(paged.k), paged.in_a_row(paged.v)
        got = self.attend(q, paged.k, paged.v, page_table=paged.table, **options)
        large = self.attend(q, k, v, page_table=integers([0], [1], [2]), **options)
        plain = tilewise.attention(q, k, v, return_lse=True, **options)
        unit = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}[q.dtype.name]
        for a, b, c in zip(got, large, plain):
            if self.device == "cpu":
                np.testing.assert_array_equal(a, b)
            for x in (a, b):
                np.testing.assert_allclose(floats(x), floats(c), rtol=unit, atol=unit)
        return got

    def verified(self, q, k, v, **options):
        options = {name: self.put(x) for name, x in options.items()}
        result = tilewise.verify(*map(self.put, (q, k, v)), **options)
        self.assertTrue(result.passed, result)

    def test_pages_are_the_same_keys_in_a_row(self):
        for dtype in DTYPES:
            for page_size, max_pages in ((1, 40), (3, 13), (16, 3)):
                for rows in (1, 4, 37):
                    with self.subTest(dtype=np.dtype(dtype).name, page_size=page_size, rows=rows):
                        paged = Paged(self.source, page_size, max_pages, dtype=dtype)
                        q = self.source.normal(3, rows, 4, 16, dtype=dtype)
                        lengths = integers(paged.capacity, 17, 38)
                        self.same(q, paged, kv_lengths=lengths, causal=True)
                        self.same(q, paged, kv_lengths=lengths, kv_starts=integers(3, 0, 20), window_size=(9, 2), softcap=5.0)
                        self.same(q, paged)

    def test_every_other_option_over_pages(self):
        paged = Paged(self.source, 3, 13)
        q = self.source.normal(3, 5, 4, 16)
        options = {"bias": self.source.normal(4, 5, 39), "mask": self.source.rng.random((3, 1, 5, 39)) < 0.7,
                   "alibi_slopes": np.linspace(0.1, 1, 4, dtype=np.float32), "sinks": self.source.normal(4)}
        for name, array in options.items():
            with self.subTest(name):
                self.same(q, paged, kv_lengths=integers(39, 5, 20), **{name: array})
        o = self.same(q, paged, kv_lengths=integers(39, 5, 20), causal=True, **options)[0]
        packed, _ = self.attend(q.reshape(15, 4, 16), paged.k, paged.v, page_table=paged.table, causal=True,
                                kv_lengths=integers(39, 5, 20), cu_seqlens_q=integers(0, 5, 10, 15), seqlen_q=5, **options)
        np.testing.assert_allclose(floats(packed).reshape(o.shape), floats(o), rtol=3e-6, atol=3e-6)

    def test_pages_that_nothing_is_read_from(self):
        paged = Paged(self.source, 3, 13)
        q, lengths = self.source.normal(3, 1, 4, 16), integers(4, 9, 10)
        want = self.same(q, paged, kv_lengths=lengths)[0]
        for b, used in enumerate((2, 3, 4)):
            paged.table[b, used:] = -1
        got, _ = self.attend(q, paged.k, paged.v, page_table=paged.table, kv_lengths=lengths)
        np.testing.assert_array_equal(floats(got), floats(want))
        self.verified(q, paged.k, paged.v, page_table=paged.table, kv_lengths=lengths)

    def test_heads_before_rows(self):
        paged = Paged(self.source, 3, 13)
        q = self.source.normal(3, 2, 4, 16)
        want, _ = self.attend(q, paged.k, paged.v, page_table=paged.table, causal=True)
        turn = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, paged.k, paged.v)]
        got, _ = self.attend(*turn, page_table=paged.table, causal=True, layout="bhsd")
        np.testing.assert_array_equal(floats(got.swapaxes(1, 2)), floats(want))

    def test_slots(self):
        q, k, v = self.source.normal(3, 2, 4, 16), self.source.normal(5, 20, 2, 16), self.source.normal(5, 20, 2, 24)
        slots, lengths = integers(4, 0, 4), integers(20, 7, 12)
        got, _ = self.attend(q, k, v, cache_batch_idx=slots, kv_lengths=lengths, causal=True)
        want = tilewise.attention(q, k[slots], v[slots], kv_lengths=lengths, causal=True)
        np.testing.assert_allclose(floats(got), want, rtol=3e-6, atol=3e-6)
        self.verified(q, k, v, cache_batch_idx=slots, kv_lengths=lengths)


class OneKernel(unittest.TestCase):
    def setUp(self):
        self.source = Source(1)

    def test_the_same_bits_of_the_same_kernel(self):
        paged = Paged(self.source, 3, 32)
        kernel = tilewise.plan(self.source.normal(3, 2, 4, 16), paged.k, paged.v, page_table=paged.table).kernel
        done = subprocess.run([sys.executable, "-c", ONE_KERNEL], capture_output=True, text=True, check=False, timeout=200,
                              cwd=os.path.dirname(os.path.abspath(__file__)), env={**os.environ, "TILEWISE_KERNEL": kernel})
        self.assertEqual(done.stdout.strip(), "equal", done.stderr)

    def test_plans_and_weights(self):
        paged = Paged(self.source, 3, 13)
        q = self.source.normal(3, 1, 4, 16)
        options = {"page_table": paged.table, "kv_lengths": integers(39, 5, 20)}
        self.assertIn("paged 13 of 44 pages of 3 rows", repr(tilewise.plan(q, paged.k, paged.v, **options)))
        self.assertIn("the problem's lie in pages", tilewise.explain(q, paged.k, paged.v, **options))
        weights = tilewise.attention_weights(q, paged.k, integers(0), **options)
        want = tilewise.attention_weights(q, paged.in_a_row(paged.k), integers(0), kv_lengths=options["kv_lengths"])
        np.testing.assert_array_equal(weights, want)
        self.assertEqual(weights.shape, (3, 4, 1, 39))


class Appending(unittest.TestCase):
    def setUp(self):
        self.source = Source(2)

    def test_append_then_attend(self):
        for page_size in (1, 3, 16):
            with self.subTest(page_size=page_size):
                paged = Paged(self.source, page_size, 48 // page_size)
                k, v = paged.in_a_row(paged.k), paged.in_a_row(paged.v)
                other = np.setdiff1d(np.arange(len(paged.k)), paged.table)
                before = paged.k[other].copy()
                filled = integers(0, 11, 30)
                for rows in (17, 1, 1):
                    k_new, v_new = self.source.normal(3, rows, 2, 16), self.source.normal(3, rows, 2, 24)
                    tilewise.cache_append(paged.k, paged.v, k_new, v_new, filled, page_table=paged.table,
                                          lengths=integers(rows, rows, 1))
                    for b in range(3):
                        n = 1 if b == 2 else rows
                        k[b, filled[b]:filled[b] + n], v[b, filled[b]:filled[b] + n] = k_new[b, :n], v_new[b, :n]
                    filled = filled + integers(rows, rows, 1)
                    np.testing.assert_array_equal(paged.in_a_row(paged.k), k)
                    np.testing.assert_array_equal(paged.in_a_row(paged.v), v)
                    q = self.source.normal(3, rows, 4, 16)
                    np.testing.assert_array_equal(
                        tilewise.attention(q, paged.k, paged.v, page_table=paged.table, kv_lengths=filled, causal=True),
                        tilewise.attention(q, k, v, page_table=integers([0], [1], [2]), kv_lengths=filled, causal=True))
                np.testing.assert_array_equal(paged.k[other], before)

    def test_rotary(self):
        angles = self.source.rng.random((20, 5), np.float32)
        cos, sin = np.cos(angles), np.sin(angles)
        starts = integers(4, 15)
        at = starts[:, None] + np.arange(3)
        for dtype in DTYPES:
            for interleaved in (False, True):
                with self.subTest(dtype=np.dtype(dtype).name, interleaved=interleaved):
                    k, v = (self.source.normal(2, 20, 2, 16, dtype=dtype) for _ in range(2))
                    k_new, v_new = (self.source.normal(2, 3, 2, 16, dtype=dtype) for _ in range(2))
                    want = k.copy()
                    tilewise.cache_append(k, v, k_new, v_new, starts, rotary_cos=cos, rotary_sin=sin,
                                          rotary_interleaved=interleaved)
                    want[[[0], [1]], at] = rotated(k_new, cos[at][:, :, None], sin[at][:, :, None], interleaved).astype(dtype)
                    unit = {"float32": 2e-7, "float16": 1e-3, "bfloat16": 8e-3}[np.dtype(dtype).name]
                    np.testing.assert_allclose(k.astype(np.float32), want.astype(np.float32), rtol=unit, atol=unit)
                    np.testing.assert_array_equal(k[[[0], [1]], at][..., 10:], k_new[..., 10:])
                    np.testing.assert_array_equal(v[[[0], [1]], at], v_new)

    def test_slots_layout_and_another_type(self):
        k, v = (np.zeros((4, 2, 6, 8), BFLOAT16 or np.float16) for _ in range(2))
        k_new, v_new = (self.source.normal(2, 2, 3, 8) for _ in range(2))
        tilewise.cache_append(k, v, k_new, v_new, integers(3, 0), cache_batch_idx=integers(2, 0), layout="bhsd")
        np.testing.assert_array_equal(k[2][:, 3:], k_new[0].astype(k.dtype))
        np.testing.assert_array_equal(v[0][:, :3], v_new[1].astype(k.dtype))
        self.assertEqual(np.count_nonzero(k.astype(np.float32)), np.count_nonzero(k_new))


class Refusals(unittest.TestCase):
    def setUp(self):
        self.source = Source(3)
        self.paged = Paged(self.source, 3, 4)
        self.q = self.source.normal(3, 1, 4, 16)
        self.new = self.source.normal(3, 2, 2, 16), self.source.normal(3, 2, 2, 24)

    def reading(self, kind, words, **options):
        options.setdefault("page_table", self.paged.table)
        with self.assertRaisesRegex(kind, words):
            tilewise.attention(self.q, self.paged.k, self.paged.v, **options)

    def test_reading(self):
        table = self.paged.table.copy()
        table[1, 2] = len(self.paged.k)
        self.reading(ValueError, r"page_table of sequence 1 entry 2 is 17; accepted: 0 to 16.*int32 \[3, 4\]",
                     page_table=table)
        self.reading(ValueError, "entry 2 is 17", page_table=table, kv_lengths=integers(1, 7, 1))
        table[1, 2] = -1
        self.reading(ValueError, "entry 2 is -1", page_table=table)
        self.reading(ValueError, r"kv_lengths\[1\] is 13; accepted: 0 to 12", kv_lengths=integers(1, 13, 1))
        self.reading(ValueError, "page_table is i64", page_table=table.astype(np.int64))
        self.reading(ValueError, r"page_table has shape \[12\]", page_table=table.reshape(-1))
        self.reading(ValueError, "page_table.*batch|batch.*page_table", page_table=table[:2])
        self.reading(ValueError, "cache_batch_idx", cache_batch_idx=integers(0, 1, 2))
        self.reading(ValueError, "cu_seqlens_kv comes with page_table; accepted: kv_lengths",
                     cu_seqlens_kv=integers(0, 1, 2, 3))
        self.reading(ValueError, r"cache_batch_idx\[2\] is 17; accepted: 0 to 16", page_table=None,
                     cache_batch_idx=integers(0, 1, 17))

    def test_no_gradient_over_a_cache(self):
        o, lse = tilewise.attention(self.q, self.paged.k, self.paged.v, page_table=self.paged.table, return_lse=True)
        with self.assertRaisesRegex(ValueError, "forward only, as caches take no gradient"):
            tilewise.attention_backward(np.ones_like(o), self.q, self.paged.k, self.paged.v, o, lse,
                                        page_table=self.paged.table)

    def appending(self, kind, words, starts=integers(0, 0, 0), **options):
        arrays = {"k": self.paged.k, "v": self.paged.v, "k_new": self.new[0], "v_new": self.new[1],
                  "page_table": self.paged.table, **options}
        before = self.paged.k.copy(), self.paged.v.copy()
        with self.assertRaisesRegex(kind, words):
            tilewise.cache_append(starts=starts, **arrays)
        np.testing.assert_array_equal(self.paged.k, before[0])
        np.testing.assert_array_equal(self.paged.v, before[1])

    def test_appending(self):
        self.appending(ValueError, r"starts\[2\] is 11; accepted: 0 to 10.*int32 \[3\] on cpu", starts=integers(0, 0, 11))
        self.appending(ValueError, "starts is i64", starts=np.zeros(3, np.int64))
        self.appending(TypeError, "starts is NoneType", starts=None)
        table = self.paged.table.copy()
        table[1, 1] = 17
        self.appending(ValueError, "page_table of sequence 1 entry 1 is 17; accepted: 0 to 16", integers(0, 2, 0),
                       page_table=table)
        table[1] = table[0]
        self.appending(ValueError, "sequences 0 and 1 both write", page_table=table)
        self.appending(ValueError, "rotary_sin", rotary_cos=np.ones((9, 4), np.float32))
        self.appending(ValueError, "rotary_cos has 1 positions; accepted: 2 or more",
                       **dict.fromkeys(("rotary_cos", "rotary_sin"), np.ones((1, 4), np.float32)))
        self.appending(ValueError, "rotary_interleaved is 1 without", rotary_interleaved=True)
        self.appending(ValueError, "layout is 'shbd'", layout="shbd")
        self.appending(ValueError, r"k has shape \[17, 3, 2, 16\]; accepted: \[17, 3, 2, 15\]",
                       k_new=self.new[0][..., :15].copy())
        self.appending(ValueError, r"k_new .*4 dimensions.*float32 \[2, 2, 16\]", k_new=self.new[0][0])

    def test_read_only_caches(self):
        for name in ("k", "v"):
            array = getattr(self.paged, name).copy()
            array.flags.writeable = False
            self.appending(ValueError, f"^{name} is read-only", **{name: array})


class Quantized(unittest.TestCase):
    """A cache in int8 is the fp32 one that its numbers times its scales are."""

    def cache(self, rng, blocks, rows, groups):
        stored = rng.integers(-127, 128, (blocks, rows, 2, 32)).astype(np.int8)
        scales = rng.uniform(0.01, 0.03, (blocks, groups, 2)).astype(np.float32)
        return stored, scales, stored * np.repeat(scales, rows // groups, 1)[..., None]

    def test_groups_of_rows(self):
        rng = np.random.default_rng(3)
        q = rng.normal(size=(3, 2, 4, 32)).astype(np.float32)
        k, k_scales, k_wide = self.cache(rng, 3, 64, 4)
        v, v_scales, v_wide = self.cache(rng, 3, 64, 4)
        options = {"kv_lengths": integers(64, 40, 17), "causal": True}
        got = tilewise.attention(q, k, v, k_scales=k_scales, v_scales=v_scales, scale_rows=16, **options)
        np.testing.assert_allclose(got, tilewise.attention(q, k_wide, v_wide, **options), rtol=0, atol=2e-5)
        with self.assertRaisesRegex(ValueError, "dtype_k is i8 without k_scales"):
            tilewise.attention(q, k, v)
        with self.assertRaisesRegex(ValueError, "k_scales has shape"):
            tilewise.attention(q, k, v, k_scales=k_scales, v_scales=v_scales)

    @unittest.skipUnless(FLOAT8, "ml_dtypes is not installed")
    def test_eight_bit_floats_of_numpy(self):
        source = Source(5)
        q, k, v = source.normal(2, 3, 4, 32), *(source.normal(2, 16, 2, 32).astype(FLOAT8) for _ in range(2))
        wide = [x.astype(np.float32) for x in (k, v)]
        np.testing.assert_allclose(tilewise.attention(q, k, v), tilewise.attention(q, *wide), rtol=0, atol=2e-6)
        scales = np.array([[0.5, -0.25], [2, 1]], np.float32)
        want = tilewise.attention(q, *(x * scales[:, None, :, None] for x in wide))
        np.testing.assert_allclose(tilewise.attention(q, k, v, k_scales=scales, v_scales=scales), want, rtol=0, atol=2e-6)
        new, at = source.normal(2, 1, 2, 32), integers(3, 15)
        tilewise.cache_append(k, v, new, -new, at, k_scales=np.abs(scales), v_scales=np.abs(scales))
        for b, row in enumerate(at):
            want = (new[b, 0] / np.abs(scales)[b, :, None]).astype(FLOAT8)
            np.testing.assert_array_equal(k[b, row].astype(np.float32), want.astype(np.float32))
            np.testing.assert_array_equal(v[b, row].astype(np.float32), -want.astype(np.float32))
        k.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "^k is read-only"):
            tilewise.cache_append(k, v, new, new, at)

    def test_append_makes_the_scales_of_its_rows(self):
        rng = np.random.default_rng(4)
        new = rng.normal(size=(2, 5, 2, 32)).astype(np.float32)
        k, v = np.zeros((2, 2, 8, 2, 32), np.int8)
        k_scales, v_scales = np.zeros((2, 2, 8, 2), np.float32)
        tilewise.cache_append(k, v, new, -new, integers(0, 3), k_scales=k_scales, v_scales=v_scales, scale_rows=1,
                              write_scales=True)
        for b, start in enumerate((0, 3)):
            back = k[b, start:start + 5] * k_scales[b, start:start + 5, :, None]
            np.testing.assert_allclose(back, new[b], rtol=0, atol=np.abs(new).max() / 127)
        np.testing.assert_array_equal(v, -k)


if __name__ == "__main__":
    unittest.main()
