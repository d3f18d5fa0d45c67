#!/usr/bin/env python3
"""What a call from Python costs beside its kernel: calls on 4 queries and keys, whose kernel takes about a microsecond.

    TILEWISE_THREADS=1 bench/python_overhead.py        needs tilewise and NumPy; PyTorch where it is installed

The least of 7 runs of 5000 calls each, in microseconds of processor time a call (with one thread that is the call's time, and
other programs on the core do not count). On a GPU besides: what enqueueing a call costs the host, 200 calls between waits.
"""

import time
import timeit

import numpy as np

import tilewise


def measure(name, call, number=5000, target=None):
    call()
    least = min(timeit.repeat(call, timer=time.process_time, number=number, repeat=7)) / number * 1e6
    print(f"{name:48s} {least:6.1f} us" + (f"  (target {target})" if target else ""), flush=True)


def main():
    q = np.random.default_rng(0).standard_normal((1, 4, 1, 8)).astype(np.float32)
    out = np.empty_like(q)
    measure("tilewise.attention, NumPy", lambda: tilewise.attention(q, q, q, causal=True), target=15)
    measure("tilewise.attention, NumPy, out=", lambda: tilewise.attention(q, q, q, causal=True, out=out), target=15)
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: not measured")
        return
    from tilewise.torch import attention, scaled_dot_product_attention

    torch.set_num_threads(1)
    t = torch.from_numpy(q)
    leaf = t.clone().requires_grad_()
    bhsd = t.transpose(1, 2).contiguous()
    measure("tilewise.attention, torch", lambda: tilewise.attention(t, t, t, causal=True), target=15)
    measure("tilewise.torch.attention", lambda: attention(t, t, t, causal=True), target=30)
    measure("tilewise.torch.attention, with a graph", lambda: attention(leaf, leaf, leaf, causal=True), target=30)
    measure("tilewise.torch, forward and backward", lambda: attention(leaf, leaf, leaf).sum().backward(), 1000)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    measure("tilewise.torch.scaled_dot_product_attention",
            lambda: scaled_dot_product_attention(bhsd, bhsd, bhsd, is_causal=True))
    measure("torch's scaled_dot_product_attention", lambda: sdpa(bhsd, bhsd, bhsd, is_causal=True))
    if torch.cuda.is_available():
        on_a_gpu(torch, attention, sdpa)


def on_a_gpu(torch, attention, sdpa):
    q = torch.randn(1, 128, 8, 64, device="cuda", dtype=torch.bfloat16)
    leaf, bhsd = q.clone().requires_grad_(), q.transpose(1, 2)

    def waiting(call):
        def calls():
            for _ in range(200):
                call()

        least = float("inf")
        for _ in range(9):
            torch.cuda.synchronize()
            least = min(least, timeit.timeit(calls, number=1) / 200 * 1e6)
        return least

    for name, call in (("tilewise.attention", lambda: tilewise.attention(q, q, q, causal=True)),
                       ("tilewise.torch.attention", lambda: attention(q, q, q, causal=True)),
                       ("tilewise.torch.attention, with a graph", lambda: attention(leaf, leaf, leaf, causal=True)),
                       ("torch's scaled_dot_product_attention", lambda: sdpa(bhsd, bhsd, bhsd, is_causal=True))):
        print(f"{'CUDA, ' + name:48s} {waiting(call):6.1f} us", flush=True)


if __name__ == "__main__":
    main()
