#!/usr/bin/env python3
"""A Hugging Face Llama under the masks that programs have, training step and prefill: SDPA, tilewise with boolean masks, tilewise.

    bench/python_masks.py [--lengths 2048,8192] [--steps N] [--json FILE]

Needs PyTorch, transformers and tilewise. Random weights in bf16 (fp32 on the CPU), 16384 tokens a step; "plain" has no mask,
"padding" pads half of the sequences by a quarter, "window" is Mistral's of 1024, "packed" position_ids of sequences of a quarter.
The implementations run in turns, the median counts. Memory is PyTorch's allocator's of one step beyond the weights.
"""

import argparse
import json
import statistics
import sys

import torch
import transformers as hf
from python_training import Timer

import tilewise.transformers

CASES = ("plain", "padding", "window", "packed")
IMPLEMENTATIONS = ("sdpa", "boolean", "tilewise")


def model_of(case, implementation, device, dtype, small):
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
            "vocab_size": 100} if small else {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
                                              "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 32000}
    size |= {"max_position_embeddings": 1 << 17, "pad_token_id": 0, "use_cache": False}
    kind, config = hf.LlamaForCausalLM, hf.LlamaConfig(**size)
    if case == "window":
        kind, config = hf.MistralForCausalLM, hf.MistralConfig(**size, sliding_window=16 if small else 1024)
    torch.manual_seed(0)
    with device:
        return kind._from_config(config, attn_implementation="sdpa" if implementation == "sdpa" else "tilewise").to(dtype)


def inputs_of(case, rows, batch, device):
    ids = torch.randint(1, 100, (batch, rows), device=device)
    given = {"input_ids": ids, "labels": ids}
    if case == "padding":
        mask = torch.ones_like(ids)
        mask[::2, rows - rows // 4:] = 0
        given["attention_mask"] = mask
    if case == "packed":
        given["position_ids"] = (torch.arange(rows, device=device) % (rows // 4)).expand(batch, -1)
    return given


def calls_of(case, rows, batch, device, dtype, small):
    """{(implementation, workload): a call}, which says which masks it wants."""
    calls, given = {}, inputs_of(case, rows, batch, device)
    for implementation in IMPLEMENTATIONS:
        model = model_of(case, implementation, device, dtype, small)

        def training(model=model, compact=implementation != "boolean"):
            tilewise.transformers.register(compact=compact)
            model(**given).loss.backward()
            model.zero_grad(set_to_none=True)

        def prefill(model=model, compact=implementation != "boolean"):
            tilewise.transformers.register(compact=compact)
            with torch.no_grad():
                model.model(**{name: x for name, x in given.items() if name != "labels"})

        calls |= {(implementation, "training"): training, (implementation, "prefill"): prefill}
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="2048,8192")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a model of 2 narrow layers, to see that this runs")
    parser.add_argument("--json")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    timer, results = Timer(device), []
    for rows in map(int, options.lengths.split(",")):
        for case in options.cases.split(","):
            dtype = torch.bfloat16 if timer.cuda else torch.float32
            calls = calls_of(case, rows, max(1, options.tokens // rows), device, dtype, options.small)
            memory = {key: timer.peak_bytes(call) for key, call in calls.items()}
            times = {key: [] for key in calls}
            for _ in range(options.steps):
                for key, call in calls.items():
                    times[key].append(timer(call))
            for workload in ("training", "prefill"):
                ours, texts = statistics.median(times["tilewise", workload]), []
                for name in IMPLEMENTATIONS:
                    seconds, peak = statistics.median(times[name, workload]), memory[name, workload]
                    results.append({"schema": 1, "case": case, "workload": workload, "implementation": name, "seqlen": rows,
                                    "ms_median": seconds * 1e3, "peak_bytes": peak})
                    memory_text = "" if peak is None else f", {peak / 2**30:.1f} GiB"
                    texts.append(f"{name} {seconds * 1e3:.1f} ms ({seconds / ours:.2f}x{memory_text})")
                print(f"{case:8s} {workload:8s} S={rows:<6d} " + "; ".join(texts), flush=True)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
