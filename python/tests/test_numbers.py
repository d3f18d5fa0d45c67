"""Every option, forward and backward, against fp64 by design's tolerance rule; and that the rule can fail."""

import unittest

import numpy as np
from arrays import BFLOAT16, DTYPES, Source, integers
from devices import OnDevice, floats, on_every_device

import tilewise
from tilewise._reference import Call, kept
from tilewise._verify import shares_of


def segments(source, batch, *lengths):
    return [np.sort(source.rng.integers(0, 3, (batch, n))).astype(np.int32) for n in lengths]


def ranges(source, batch, rows, keys):
    first = source.rng.integers(0, keys, (batch, rows))
    return np.stack([first, np.minimum(first + 9, keys)], axis=-1).astype(np.int32)


def options(source):
    """Name and options for q, k, v of Source.qkv(): B 2, Sq 37, Skv 45, Hq 4."""
    yield "plain", {}
    yield "scale", {"softmax_scale": -0.3}
    yield "causal", {"causal": True}
    yield "top-left", {"causal": "top-left"}
    yield "q_offset", {"causal": True, "q_offset": 5}
    yield "q_offset array", {"causal": True, "q_offset": integers(3, -4)}
    yield "window", {"window_size": (7, 2)}
    yield "causal window", {"causal": True, "window_size": (7, -1)}
    yield "softcap", {"softcap": 1.5}
    yield "bias", {"bias": source.normal(2, 4, 37, 45)}
    yield "bias of one head", {"bias": source.normal(37, 45)}
    yield "bias of keys", {"bias": source.normal(2, 1, 1, 45)}
    hidden = source.normal(1, 4, 37, 45)
    hidden[hidden > 1] = -np.inf
    yield "bias with -inf", {"bias": hidden}
    yield "mask", {"mask": source.rng.random((2, 1, 37, 45)) < 0.6}
    yield "mask of keys", {"mask": source.rng.random(45) < 0.6}
    bits = [np.packbits(source.rng.random(shape) < 0.6, axis=-1, bitorder="little") for shape in ((2, 4, 37, 45), (37, 45), (45,))]
    yield "mask in bits", {"mask": bits[0]}
    yield "mask in bits of one head", {"mask": bits[1]}
    yield "mask in bits of keys", {"mask": bits[2]}
    yield "nothing visible", {"mask": np.zeros((37, 45), bool)}
    yield "lengths", {"q_lengths": integers(30, 0), "kv_lengths": integers(20, 45), "kv_starts": integers(4, 0)}
    yield "causal lengths", {"causal": True, "q_lengths": integers(30, 37), "kv_lengths": integers(20, 45)}
    ids = segments(source, 2, 37, 45)
    yield "segments", {"segment_ids_q": ids[0], "segment_ids_kv": ids[1]}
    yield "ranges", {"kv_ranges": ranges(source, 2, 37, 45)}
    yield "alibi", {"alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0], np.float32), "causal": True}
    yield "alibi of each sequence", {"alibi_slopes": np.abs(source.normal(2, 4))}
    yield "sinks", {"sinks": source.normal(4), "causal": True, "window_size": (3, 0)}
    yield "dropout", {"dropout_p": 0.3, "dropout_seed": 2**63 + 5, "dropout_offset": 7}
    yield "dropout state", {"dropout_p": 0.5, "dropout_state": np.array([9, 2**40], np.uint64)}


@on_every_device
class AgainstFp64(OnDevice):
    def hold(self, source, q, k, v, extra, layout="bshd"):
        """Both directions by the rule."""
        dtype = q.dtype
        q, k, v, extra = *map(self.put, (q, k, v)), {name: self.put(x) for name, x in extra.items()}
        o, lse = tilewise.attention(q, k, v, layout=layout, return_lse=True, **extra)
        dout, dlse = self.put(source.normal(*o.shape, dtype=dtype)), self.put(source.normal(*lse.shape))
        result = tilewise.verify(q, k, v, layout=layout, dout=dout, dlse=dlse, **extra)
        self.assertGreaterEqual(set(result.shares), {"o", "lse", "dq", "dk", "dv"})
        self.assertTrue(result.passed, result)

    def test_options(self):
        for dtype in DTYPES:
            source = Source(1)
            q, k, v = source.qkv(dtype=dtype)
            for name, extra in options(source):
                with self.subTest(name, dtype=np.dtype(dtype).name):
                    self.hold(source, q, k, v, extra)

    def test_bhsd(self):
        source = Source(2)
        q, k, v = (x.swapaxes(1, 2).copy() for x in source.qkv())
        for name, extra in options(source):
            with self.subTest(name):
                self.hold(source, q, k, v, extra, layout="bhsd")

    def test_bhsd_is_bshd_by_strides(self):
        q, k, v = map(self.put, Source(3).qkv())
        o = tilewise.attention(q, k, v, causal=True)
        other = tilewise.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="bhsd", causal=True)
        self.assertTrue(np.array_equal(floats(o), floats(other.swapaxes(1, 2))))
        self.assertEqual(other.shape, (2, 4, 37, 24))

    def test_packed(self):
        source = Source(4)
        cu_q, cu_kv = integers(0, 7, 7, 30), np.array([0, 5, 9, 41], np.int64)
        q, k, v = source.normal(32, 4, 16), source.normal(41, 2, 16), source.normal(41, 2, 24)
        longest = {} if self.device == "cpu" else {"seqlen_q": 23, "seqlen_kv": 32}  # which the host cannot read there
        cases = {"plain": {}, "causal": {"causal": True}, "longest": {"seqlen_q": 23, "seqlen_kv": 32},
                 "ranges": {"kv_ranges": ranges(source, 32, 1, 5)[:, 0]},
                 "segments": {"segment_ids_q": np.zeros(32, np.int32),
                              "segment_ids_kv": (np.arange(41) % 3 // 2).astype(np.int32)}}
        for name, extra in cases.items():
            with self.subTest(name):
                self.hold(source, q, k, v, {"cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv, **longest, **extra})
        o, lse = tilewise.attention(*map(self.put, (q, k, v)), cu_seqlens_q=self.put(cu_q), cu_seqlens_kv=self.put(cu_kv),
                                    return_lse=True, **longest)
        self.assertEqual((o.shape, lse.shape), ((32, 4, 24), (4, 32)))

    def test_larger_heads_and_lengths(self):
        for dim, rows, keys in ((64, 130, 200), (128, 65, 257), (192, 3, 70)):
            source = Source(dim)
            with self.subTest(dim=dim):
                q, k, v = source.qkv(1, rows, keys, 2, 1, dim, dim, dtype=BFLOAT16 or np.float16)
                self.hold(source, q, k, v, {"causal": True})

    def test_several_tiles(self):
        """Lengths of some tiles each, in the types and head dimensions of the tensor cores."""
        for dtype in DTYPES:
            for dim, dim_v in ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256)):
                source = Source(dim)
                with self.subTest(dtype=np.dtype(dtype).name, dim=dim):
                    q, k, v = source.qkv(1, 257, 390, 4, 2, dim, dim_v, dtype=dtype)
                    self.hold(source, q, k, v, {"causal": True, "window_size": (200, 0)})

    def test_dropout_mask_is_the_documented_one(self):
        q, k, v = np.zeros((1, 5, 2, 4), np.float32), np.zeros((1, 6, 2, 4), np.float32), np.eye(6, dtype=np.float32)
        v = np.repeat(v[None, :, None], 2, axis=2)
        o = floats(tilewise.attention(*map(self.put, (q, k, v)), dropout_p=0.4, dropout_seed=3, dropout_offset=11))
        for head in range(2):
            keep, scale = kept(0.4, 3, 11, 0, head, 5, 6)
            np.testing.assert_allclose(o[0, :, head], keep * scale / 6, rtol=1e-6)
        self.assertTrue(0 < np.count_nonzero(o) < o.size)


class TheRule(unittest.TestCase):
    def test_a_wrong_result_fails_the_rule(self):
        q, k, v = Source(5).qkv()
        o, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
        self.assertLess(max(shares_of({"o": o, "lse": lse}, q, k, v, causal=True).values()), 1)
        for name, at in (("o", (1, 20, 3, 5)), ("lse", (0, 2, 36))):
            wrong = {"o": o.copy(), "lse": lse.copy()}
            wrong[name][at] += 3e-4
            self.assertGreater(shares_of(wrong, q, k, v, causal=True)[name], 1)
        self.assertGreater(shares_of({"o": o, "lse": lse}, q, k, v, causal="top-left")["o"], 1)
        self.assertGreater(shares_of({"o": o, "lse": lse}, q, k, v, causal=True, softmax_scale=0.26)["o"], 1)

    def test_a_wrong_gradient_fails_the_rule(self):
        source = Source(6)
        q, k, v = source.qkv()
        bias, sinks = source.normal(4, 1, 45), source.normal(4)
        o, lse = tilewise.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
        dout = source.normal(*o.shape)
        gradients = tilewise.attention_backward(dout, q, k, v, o, lse, bias=bias, sinks=sinks)._asdict()
        for name, gradient in gradients.items():
            wrong = dict(gradients, **{name: gradient * np.float32(1.001)}, o=o, lse=lse)
            shares = shares_of(wrong, q, k, v, dout=dout, bias=bias, sinks=sinks)
            self.assertGreater(shares.pop(name), 1, name)
            self.assertLess(max(shares.values()), 1)

    def test_golden_dropout_state(self):
        """The table of docs/conventions.md: seed 1, offset 2, b 3, h 4, row 5: pair 0 is 0xaab853ac."""
        for bits, key in ((0x53AC, 0), (0xAAB8, 1), (0xED9A, 2), (0x35F4, 3)):
            keep, _ = kept(bits / 65536, 1, 2, 3, 4, 6, 4)
            self.assertTrue(keep[5, key])
            keep, _ = kept((bits + 1) / 65536, 1, 2, 3, 4, 6, 4)
            self.assertFalse(keep[5, key])

    def test_the_reference_knows_a_case_by_hand(self):
        """Two keys with scores 0 and log 3: weights 1/4 and 3/4."""
        q, k = np.full((1, 1, 1, 1), np.log(3.0)), np.array([0.0, 1.0]).reshape(1, 2, 1, 1)
        o, lse, p = Call(q, k, k * 8, "float32", {"softmax_scale": 1.0}).head(0, 0).forward(np.float64)
        np.testing.assert_allclose(p, [[0.25, 0.75]])
        np.testing.assert_allclose((o[0, 0], lse[0]), (6.0, np.log(4.0)))


@on_every_device
class Parts(OnDevice):
    def test_merge(self):
        source = Source(7)
        q, k, v = source.qkv()
        for layout in ("bshd", "bhsd"):
            x, y, z = (self.put(a.swapaxes(1, 2).copy() if layout == "bhsd" else a) for a in (q, k, v))
            keys = (slice(None), slice(None), slice(0, 20)) if layout == "bhsd" else (slice(None), slice(0, 20))
            rest = (*keys[:-1], slice(20, None))
            o, lse = tilewise.attention(x, y[keys], z[keys], layout=layout, return_lse=True)
            part = tilewise.attention(x, y[rest], z[rest], layout=layout, return_lse=True)
            tilewise.merge(o, lse, *part, layout=layout)
            shares = shares_of({"o": o, "lse": lse}, x, y, z, layout=layout)
            self.assertLess(max(shares.values()), 1)

    def test_backward_from_delta_and_accumulate(self):
        source = Source(9)
        q, k, v = map(self.put, source.qkv())
        o, lse = tilewise.attention(q, k, v, return_lse=True)
        dout = source.normal(*o.shape)
        delta = self.put(np.einsum("bihd,bihd->bhi", dout, floats(o)))
        dout = self.put(dout)
        whole = tilewise.attention_backward(dout, q, k, v, o, lse)
        out = {"dq": q * 0 + 1, "dk": k * 0, "dv": v * 0}
        got = tilewise.attention_backward(dout, q, k, v, None, lse, delta=delta, out=out, accumulate=True)
        self.assertIs(got.dq, out["dq"])
        np.testing.assert_allclose(floats(got.dq) - 1, floats(whole.dq), atol=2e-6)
        np.testing.assert_allclose(floats(got.dk), floats(whole.dk), atol=2e-6)
        only = tilewise.attention_backward(dout, q, k, v, o, lse, wants=("dv",))
        self.assertIsNone(only.dq)
        np.testing.assert_allclose(floats(only.dv), floats(whole.dv), atol=2e-6)


class Weights(unittest.TestCase):
    def test_attention_weights(self):
        source = Source(8)
        q, k, _ = source.qkv()
        rows = integers(0, 36, 5)
        got = tilewise.attention_weights(q, k, rows, causal=True, sinks=source.normal(4))
        self.assertEqual(got.shape, (2, 4, 3, 45))
        got = tilewise.attention_weights(q, k, rows, causal=True)
        want = Call(q.astype(float), k.astype(float), k.astype(float), "float32", {"causal": True}).head(1, 3)
        np.testing.assert_allclose(got[1, 3], want.forward(np.float64)[2][rows], atol=1e-7)

    def test_attention_weights_of_packed_sequences(self):
        source = Source(8)
        q, k = source.normal(9, 2, 8), source.normal(11, 2, 8)
        cu_q, cu_kv = integers(0, 4, 9), integers(0, 4, 11)
        p = tilewise.attention_weights(q, k, integers(3), cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv)
        self.assertEqual(p.shape, (2, 2, 1, 7))
        alone = tilewise.attention_weights(q[None, 4:], k[None, 4:], integers(3))
        np.testing.assert_array_equal(p[1], alone[0])
        np.testing.assert_array_equal(p[0, :, :, 4:], 0)


if __name__ == "__main__":
    unittest.main()
