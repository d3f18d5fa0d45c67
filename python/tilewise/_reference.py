"""Attention by its definition, in NumPy: plain, dense, one head at a time. docs/conventions.md, written a second time.

`exact` is fp64. `naive` is three-step attention: every product and sum in fp32 in index order, P and dS rounded to the
storage type before their products.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """x to the nearest element of `dtype`, ties to even, as fp32."""
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
        if dtype == "float16":
            return x.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = x.view(np.uint32)
        even = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(x), even.view(np.float32), x)
    return x


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b; in fp32 summed in index order."""
    if a.dtype != np.float32:
        return a @ b
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for n in range(a.shape[1]):
        total += a[:, n, None] * b[None, n]
    return total


def kept(p: float, seed: int, offset: int, batch: int, head: int, rows: int, keys: int) -> tuple:
    """(mask bool [rows, keys], scale) of dropout."""
    threshold = round(p * 65536)

    def mix(x):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        x = mix(np.uint64(seed) + golden)
        x = mix(x ^ (np.uint64(offset) + golden))
        x = mix(x ^ (np.uint64(batch) * np.uint64(0xD1342543DE82EF95)))
        x = mix(x ^ (np.uint64(head) * np.uint64(0xAF251AF3B0F025B5)))
        x = mix(x ^ (np.arange(rows, dtype=np.uint64) * golden))
        low, high = x.astype(np.uint32)[:, None], (x >> np.uint64(32)).astype(np.uint32)[:, None]
        y = (np.arange((keys + 1) // 2, dtype=np.uint32) * np.uint32(0x9E3779B1))[None] + low
        y = (y ^ (y >> np.uint32(16))) * np.uint32(0x21F0AAAD)
        y = ((y ^ (y >> np.uint32(15))) ^ high) * np.uint32(0x735A2D97)
        y ^= y >> np.uint32(15)
    bits = np.stack([y & np.uint32(0xFFFF), y >> np.uint32(16)], axis=-1).reshape(rows, -1)[:, :keys]
    return bits >= threshold, 65536 / (65536 - threshold) if threshold < 65536 else 0.0


@dataclass
class Head:
    """One sequence and one query head: q [Sq, D], k [Skv, D], v [Skv, Dv] in fp64, and what decides its scores."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    visible: np.ndarray  # bool [Sq, Skv]
    distance: np.ndarray  # |p - j|, [Sq, Skv]
    rows: np.ndarray  # bool [Sq]: queries; others are padding
    scale: float
    dtype: str
    softcap: float = 0.0
    bias: np.ndarray | None = None  # [Sq, Skv]
    slope: float = 0.0
    sink: float = -np.inf
    keep: np.ndarray | None = None  # bool [Sq, Skv]
    keep_scale: float = 1.0

    def scores(self, real: type) -> tuple:
        """(scores with -inf where hidden, slope of the softcap)."""
        with np.errstate(all="ignore"):
            scaled = real(self.scale) * product(self.q.astype(real), self.k.astype(real).T)
            if self.softcap:
                t = np.tanh(scaled / real(self.softcap))
                scaled, slope = real(self.softcap) * t, 1 - t * t
            else:
                slope = np.ones_like(scaled)
            if self.bias is not None:
                scaled = scaled + self.bias.astype(real)
            scaled = scaled - real(self.slope) * self.distance.astype(real)
        return np.where(self.visible, scaled, -np.inf).astype(real), slope

    def dropped(self, weights: np.ndarray) -> np.ndarray:
        return weights if self.keep is None else np.where(self.keep, weights * weights.dtype.type(self.keep_scale), 0)

    def forward(self, real: type) -> tuple:
        """(o [Sq, Dv], lse [Sq], P [Sq, Skv])."""
        with np.errstate(all="ignore"):
            scores, _ = self.scores(real)
            top = np.maximum(scores.max(axis=1, initial=-np.inf), self.sink).astype(real)[:, None]
            weights = np.where(np.isneginf(scores), 0, np.exp(scores - top)).astype(real)
            total = weights.cumsum(axis=1)[:, -1:] if weights.shape[1] else np.zeros((len(weights), 1), real)
            if self.sink > -np.inf:
                total = total + np.exp(real(self.sink) - top)
            lse = (top + np.log(total))[:, 0]
            seen = (total[:, 0] > 0) | np.isnan(total[:, 0])
            p = np.where(seen[:, None], weights / total, 0).astype(real)
        lse = np.where(self.rows, np.where(seen, lse, -np.inf), -np.inf).astype(real)
        p = np.where(self.rows[:, None], p, 0).astype(real)
        stored = self.dropped(p)
        if real is np.float32:
            stored = rounded(stored, self.dtype)
        return product(stored, self.v.astype(real)), lse, p

    def forward_terms(self, o: np.ndarray, lse: np.ndarray, p: np.ndarray) -> tuple:
        """A of the tolerance rule for o and lse: every term by its magnitude, scores through their weights."""
        s = self.score_terms()
        weight = self.dropped(p)
        size = np.abs(self.v)
        terms = weight @ size
        for d in range(self.v.shape[1]):
            terms[:, d] += (weight * s * np.abs(self.v[None, :, d] - o[:, d, None])).sum(axis=1)
        return terms, np.abs(lse) + 1 + (p * s).sum(axis=1)

    def score_terms(self) -> np.ndarray:
        squares = np.zeros((len(self.q), len(self.k)))
        partial = np.zeros_like(squares)
        for d in range(self.q.shape[1]):
            partial += self.q[:, d, None] * self.k[None, :, d]
            squares += partial**2
        terms = abs(self.scale) * np.maximum(np.abs(self.q) @ np.abs(self.k).T, np.sqrt(squares))
        if self.softcap:
            t = np.tanh(self.scale * partial / self.softcap)
            terms = self.softcap * (np.abs(t) + (1 - t * t) * terms / self.softcap)
        bias = 0 if self.bias is None else np.abs(np.where(np.isfinite(self.bias), self.bias, 0))
        return np.where(self.visible, terms + bias + abs(self.slope) * self.distance, 0)

    def backward(self, real: type, o: np.ndarray, lse: np.ndarray, dout: np.ndarray, dlse: np.ndarray) -> dict:
        """dq, dk, dv, dbias [Sq, Skv], dsinks, from o and lse as they were stored."""
        scores, slope = self.scores(real)
        seen = np.isfinite(lse) & self.rows
        with np.errstate(all="ignore"):
            p = np.where(seen[:, None] & ~np.isneginf(scores), np.exp(scores - lse.astype(real)[:, None]), 0).astype(real)
        d, o = dout.astype(real), o.astype(real)
        delta = (d * o).cumsum(axis=1)[:, -1] - dlse.astype(real)
        ds = p * (self.dropped(product(d, self.v.astype(real).T)) - delta[:, None])
        dx, stored = (slope * ds).astype(real), self.dropped(p)
        if real is np.float32:
            dx, stored = rounded(dx, self.dtype), rounded(stored, self.dtype)
        scale = real(self.scale)
        with np.errstate(over="ignore"):
            share = np.where(seen & (self.sink > -np.inf), np.exp(np.minimum(real(self.sink) - lse.astype(real), 0)), 0)
        return {"dq": scale * product(dx, self.k.astype(real)), "dk": scale * product(dx.T, self.q.astype(real)),
                "dv": product(stored.T, d), "dbias": ds, "dsinks": -(share * delta).astype(real).cumsum()[-1:].sum()}

    def backward_terms(self, o: np.ndarray, lse: np.ndarray, dout: np.ndarray, dlse: np.ndarray) -> dict:
        scores, slope = self.scores(np.float64)
        seen = np.isfinite(lse) & self.rows
        near = np.where(seen, lse, 0)
        p = np.where(seen[:, None] & ~np.isneginf(scores), np.exp(scores - near[:, None]), 0)
        rest = (np.abs(dout) * np.abs(o)).sum(axis=1) + np.abs(dlse)
        delta = (dout * o).sum(axis=1) - dlse
        ds = p * (self.dropped(dout @ self.v.T) - delta[:, None])
        error = self.score_terms() + np.abs(near)[:, None]
        m = p * (self.dropped(np.abs(dout) @ np.abs(self.v).T) + rest[:, None]) + np.abs(ds) * error
        share = np.where(seen & (self.sink > -np.inf), np.exp(np.minimum(self.sink - near, 0)), 0) if self.sink > -np.inf else 0
        sink = abs(self.sink) if self.sink > -np.inf else 0
        return {"dq": abs(self.scale) * (slope * m) @ np.abs(self.k), "dk": abs(self.scale) * (slope * m).T @ np.abs(self.q),
                "dv": (self.dropped(p) * (1 + error)).T @ np.abs(dout), "dbias": m,
                "dsinks": (share * rest + np.abs(share * delta) * (sink + np.abs(near))).sum()}


@dataclass
class Call:
    """Arguments of attention() as fp64 and integer NumPy arrays, q, k, v in [B, S, H, D] or packed."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dtype: str
    options: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.options.get(name)
        return default if value is None else value

    def sequences(self) -> int:
        for name, array in (("cu_seqlens_q", self.q), ("cu_seqlens_kv", self.k)):
            if self.get(name) is not None:
                return len(self.get(name)) - 1
        return self.q.shape[0]

    def span(self, name: str, total: int, b: int) -> slice:
        """Rows of sequence b in a packed array."""
        cu = self.get(name)
        begin = min(max(int(cu[b]), 0), total)
        return slice(begin, min(max(int(cu[b + 1]), begin), total))

    def rows_of(self, array: np.ndarray, b: int, cu: str) -> np.ndarray:
        return array[b] if self.get(cu) is None else array[self.span(cu, len(array), b)]

    def head(self, b: int, h: int) -> Head:
        q = self.rows_of(self.q, b, "cu_seqlens_q")[:, h]
        group = self.q.shape[-2] // self.k.shape[-2]
        k, v = (self.rows_of(x, b, "cu_seqlens_kv")[:, h // group] for x in (self.k, self.v))
        visible, distance, rows = self.mask(b, h, len(q), len(k))
        bias = self.scores_of("bias", b, h, len(q), len(k))
        if bias is not None:
            visible = visible & ~np.isneginf(bias)
            bias = np.where(visible, bias, 0)
        unseen = ~visible.any(axis=0)
        head = Head(q, np.where(unseen[:, None], 0, k), np.where(unseen[:, None], 0, v), visible, distance, rows,
                    self.get("softmax_scale", self.q.shape[-1] ** -0.5), self.dtype, self.get("softcap", 0.0), bias)
        if self.get("alibi_slopes") is not None:
            slopes = self.get("alibi_slopes")
            head.slope = float(slopes[h] if slopes.ndim == 1 else slopes[b, h])
        if self.get("sinks") is not None:
            head.sink = float(self.get("sinks")[h])
        if self.get("dropout_p", 0.0):
            head.keep, head.keep_scale = kept(self.get("dropout_p"), self.get("dropout_seed", 0),
                                              self.get("dropout_offset", 0), b, h, len(q), len(k))
        return head

    def scores_of(self, name: str, b: int, h: int, rows: int, keys: int) -> np.ndarray | None:
        array = self.get(name)
        if array is None:
            return None
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        array = array[b if array.shape[0] > 1 else 0, h if array.shape[1] > 1 else 0]
        rows_of, keys_of = (slice(None) if n == 1 else slice(0, m) for n, m in zip(array.shape, (rows, keys)))
        return np.broadcast_to(array[rows_of, keys_of], (rows, keys))

    def mask(self, b: int, h: int, rows: int, keys: int) -> tuple:
        """(visible [rows, keys], |p - j|, rows that are queries)."""
        def length(name, most):
            lengths = self.get(name)
            return most if lengths is None else min(max(int(lengths[b]), 0), most)

        len_q, len_kv = length("q_lengths", rows), length("kv_lengths", keys)
        start = 0 if self.get("kv_starts") is None else length("kv_starts", keys)
        causal, offset = self.get("causal", False), self.options.get("q_offset")
        if causal == "top-left":
            offset = 0
        elif offset is None:
            offset = len_kv - len_q
        elif np.ndim(offset):
            offset = int(offset[b])
        i, j = np.arange(rows)[:, None], np.arange(keys)[None]
        p = i + offset
        left, right = self.get("window_size", (-1, -1))
        right = 0 if causal else right
        visible = (i < len_q) & (j >= start) & (j < len_kv)
        if left >= 0:
            visible &= j >= p - left
        if right >= 0:
            visible &= j <= p + right
        if self.get("kv_ranges") is not None:
            ranges = self.rows_of(self.get("kv_ranges"), b, "cu_seqlens_q")
            visible &= (j >= ranges[:, 0, None]) & (j < ranges[:, 1, None])
        if self.get("segment_ids_q") is not None:
            visible &= (self.rows_of(self.get("segment_ids_q"), b, "cu_seqlens_q")[:, None]
                        == self.rows_of(self.get("segment_ids_kv"), b, "cu_seqlens_kv")[None])
        mask = self.scores_of("mask", b, h, rows, keys)
        if mask is not None:
            visible &= mask.astype(bool)
        return visible, np.abs(p - j).astype(np.float64), np.arange(rows) < len_q
