"""A mask of your own: a tree of guessed tokens, of which each sees its ancestors and the whole prompt.

A dense mask is a byte a pair, or a bit where it is packed by np.packbits; a float bias adds to scores, -inf hides. Masks
broadcast from the right: [rows, keys] serves every head and sequence.

    python examples/python/custom_mask.py
"""

import numpy as np

import tilewise

prompt, heads, head_dim = 100, 4, 32
parent = [-1, 0, 0, 1, 1, 2, 5]                # token 0 follows the prompt, 1 and 2 are two guesses of what follows it, ...
rows = len(parent)
mask = np.zeros((rows, prompt + rows), bool)
mask[:, :prompt] = True
for token in range(rows):
    at = token
    while at >= 0:
        mask[token, prompt + at] = True
        at = parent[at]

source = np.random.default_rng(0)
q = source.standard_normal((1, rows, heads, head_dim), np.float32)
k, v = (source.standard_normal((1, prompt + rows, heads, head_dim), np.float32) for _ in range(2))
o = tilewise.attention(q, k, v, mask=mask)

path = [0, 2, 5, 6]                            # the guess that ends in token 6, computed as plain text
keys = [*range(prompt), *(prompt + token for token in path)]
alone = tilewise.attention(q[:, path], k[:, keys], v[:, keys], causal=True)
print(f"largest difference from the path alone {np.abs(o[:, path] - alone).max():.1e}")
assert np.allclose(o[:, path], alone, atol=1e-6)

bits = np.packbits(mask, axis=-1, bitorder="little")
assert np.array_equal(tilewise.attention(q, k, v, mask=bits), o)
bias = np.where(mask, 0, -np.inf).astype(np.float32)
assert np.allclose(tilewise.attention(q, k, v, bias=bias), o, atol=1e-6)
print(f"bool {mask.nbytes} bytes, bits {bits.nbytes}, bias {bias.nbytes}")
