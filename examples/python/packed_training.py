"""Training on documents of different lengths, packed into one row without padding: cu_seqlens keeps them apart.

    python examples/python/packed_training.py        needs PyTorch
"""

import torch

from tilewise.torch import attention

torch.manual_seed(0)
lengths = torch.tensor([5, 11, 3, 13])
cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
vocabulary, width, heads = 17, 32, 4
documents = [(torch.arange(n) * 3 + start) % vocabulary for start, n in enumerate(lengths.tolist())]
tokens, targets = torch.cat([d for d in documents]), torch.cat([(d + 3) % vocabulary for d in documents])


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)                                              # [total, width]
        q, k, v = self.qkv(x).unflatten(-1, (3, heads, width // heads)).unbind(1)
        o = attention(q, k, v, causal=True, cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
        return self.out(x + o.flatten(1))


model = Layer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(60):
    loss = torch.nn.functional.cross_entropy(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} over {len(losses)} steps, {int(lengths.sum())} rows, no padding")
assert losses[-1] < losses[0] / 5

# A document does not see its neighbours: alone it gives the same rows.
with torch.no_grad():
    whole, cu_seqlens = model(tokens), torch.tensor([0, 11], dtype=torch.int32)
    assert torch.allclose(model(documents[1]), whole[5:16], atol=1e-5)
