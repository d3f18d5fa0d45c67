"""A long document on a laptop: attention over its whole length, and in parts that are merged.

    python examples/python/long_document.py [LENGTH]
"""

import sys
import time

import numpy as np

import tilewise

length, heads, head_dim = int(sys.argv[1]) if sys.argv[1:] else 4096, 4, 64
source = np.random.default_rng(0)
q, k, v = (source.standard_normal((1, length, heads, head_dim), np.float32) for _ in range(3))

plan = tilewise.plan(q, k, v, causal=True)
start = time.perf_counter()
whole = tilewise.attention(q, k, v, causal=True)
seconds = time.perf_counter() - start
scores = heads * length**2 * 4
print(f"{length} rows: {seconds:.2f} s with {plan.kernel}")
print(f"scratch {plan.workspace_bytes / 2**20:.1f} MB; the scores alone would be {scores / 2**20:.0f} MB")

# A reader that sees the last 256 keys: hidden tiles are skipped, so the work is that of the window.
start = time.perf_counter()
tilewise.attention(q, k, v, causal=True, window_size=(255, 0))
print(f"a window of 256 keys: {time.perf_counter() - start:.2f} s")

# The keys in four parts, as if they came from four machines. q_offset says where the part's keys stand.
o = np.zeros_like(q)
lse = np.full((1, heads, length), -np.inf, np.float32)
for first in range(0, length, length // 4):
    rows = slice(first, first + length // 4)
    tilewise.merge(o, lse, *tilewise.attention(q, k[:, rows], v[:, rows], causal=True, q_offset=-first, return_lse=True))
error = np.abs(o - whole).max()
print(f"four parts merged: largest difference {error:.1e}")
assert error < 1e-5
