"""What a query looks at: exact rows of the weights P, for chosen queries alone.

    python examples/python/rows_of_p.py
"""

import numpy as np

import tilewise

words = "the cat that the dog saw sat on the mat".split()
head_dim = 16
source = np.random.default_rng(1)
meaning = {word: source.standard_normal(head_dim).astype(np.float32) for word in words}
x = np.stack([meaning[word] for word in words])[None, :, None]      # [1, 10, 1, 16]: equal words are equal vectors

rows = np.array([3, 8], np.int32)                                    # the second and third "the"
p = tilewise.attention_weights(x, x, rows, causal=True, softmax_scale=0.2)[0, 0]
for row, weights in zip(rows, p):
    best = np.argsort(-weights)[:3]
    print(f"word {row} ({words[row]!r}) looks at " + ", ".join(f"{words[j]} {j}: {weights[j]:.2f}" for j in best))
    assert weights[row + 1:].sum() == 0 and abs(weights.sum() - 1) < 1e-6
    assert {words[j] for j in best[:2]} == {"the"}
