"""Text that looks at images, each sentence at the image it follows: cross attention with kv_ranges.

Three images of 64 patches stand in one row of keys; 12 tokens of text come after each. A range a token says which patches
it sees, in O(tokens) memory, and tiles outside of it are skipped.

    python examples/python/images_and_text.py
"""

import numpy as np

import tilewise

images, patches, tokens, heads, head_dim = 3, 64, 12, 4, 32
source = np.random.default_rng(0)
q = source.standard_normal((1, images * tokens, heads, head_dim), np.float32)
k, v = (source.standard_normal((1, images * patches, heads, head_dim), np.float32) for _ in range(2))

image_of_token = np.repeat(np.arange(images), tokens)
ranges = np.stack([image_of_token * patches, (image_of_token + 1) * patches], axis=-1).astype(np.int32)[None]
o = tilewise.attention(q, k, v, kv_ranges=ranges)

for n in range(images):
    rows, keys = slice(n * tokens, (n + 1) * tokens), slice(n * patches, (n + 1) * patches)
    alone = tilewise.attention(q[:, rows], k[:, keys], v[:, keys])
    print(f"image {n}: largest difference from attending to it alone {np.abs(o[:, rows] - alone).max():.1e}")
    assert np.allclose(o[:, rows], alone, atol=1e-6)

# The same as a dense mask: a byte a pair.
mask = image_of_token[:, None] == np.repeat(np.arange(images), patches)[None]
assert np.allclose(tilewise.attention(q, k, v, mask=mask), o, atol=1e-6)
print(f"kv_ranges {ranges.nbytes} bytes, the mask {mask.nbytes}")
