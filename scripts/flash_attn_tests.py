#!/usr/bin/env python3
"""Runs FlashAttention's own tests against tilewise.install_as_flash_attn().

    scripts/flash_attn_tests.py CLONE [--cases N] [--longest S] [-k [not ]NAME] [--seed N] [--seconds S] [--processes P]

CLONE is a clone of FlashAttention's repository (github.com/Dao-AILab/flash-attention); its tests/test_flash_attn.py is read,
nothing of it is kept. Its decorators make some 500,000 cases, more than can be collected: of each test N (default 20) cases are
drawn by a seed, of those whose sequences are at most S (default 512) rows, and the test is called with them, in turns, as many
as begin within --seconds, dealt to P processes (default 1). Without a GPU the device's name is replaced, so that the same cases run on the CPU. Needs tilewise,
PyTorch, pytest and einops. A line for each case with the reason where it failed, for each test with the lines at which the file
skips a case by itself, and the sum last.
"""

import argparse
import contextlib
import importlib.util
import itertools
import math
import multiprocessing
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tilewise

TESTS = ("test_flash_attn_output", "test_flash_attn_varlen_output", "test_flash_attn_qkvpacked",
         "test_flash_attn_varlen_qkvpacked", "test_flash_attn_causal", "test_flash_attn_varlen_causal",
         "test_flash_attn_splitkv", "test_flash_attn_kvcache", "test_flash_attn_race_condition",
         "test_flash_attn_bwd_transpose", "test_flash_attn_bwd_overflow", "test_flash_attn_bwd_varlen_overflow",
         "test_flash_attn_deterministic", "test_flash_attn_varlen_deterministic")


def prepare(text):
    """The test file for this machine, and what it imports beside the public functions."""
    import flash_attn.flash_attn_interface as interface

    interface._get_block_size_n = lambda *_: 2**30  # probabilities are over the whole row's largest
    interface.USE_TRITON_ROCM = False
    if torch.cuda.is_available():
        return text
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(total_memory=2**40)
    torch.cuda.synchronize = lambda *_: None
    return re.sub(r"""(["'])cuda\1""", '"cpu"', text)


def load(text, folder):
    file = Path(folder) / "test_flash_attn.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("test_flash_attn", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parameters(test):
    """[{names: values}] of each of its decorators."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    axes = []
    for mark in marks:
        names, values = mark.args
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        axes.append([dict(zip(names, value if len(names) > 1 else (value,))) for value in values])
    return axes


def drawn(axes, count, longest, dice):
    """Up to `count` different cases, and how many the decorators make."""
    def short(choice):
        return all(value <= longest for name, value in choice.items() if "seqlen" in name and isinstance(value, int))

    axes = [list(enumerate(axis)) for axis in axes]
    total = math.prod(map(len, axes))
    axes = [[choice for choice in axis if short(choice[1])] for axis in axes]
    found, wanted = {}, min(count, math.prod(map(len, axes)))
    while len(found) < wanted:
        picked = [dice.choice(axis) for axis in axes]
        found[tuple(number for number, _ in picked)] = {name: x for _, choice in picked for name, x in choice.items()}
    return list(found.values()), total


def outcome(test, case):
    """("passed" | "failed" | "skipped", reason)."""
    try:
        with contextlib.redirect_stdout(None):  # which says what each case's errors are
            test(**case)
        return "passed", ""
    except (pytest.skip.Exception, pytest.fail.Exception, Exception) as error:  # whatever a test raises is its verdict
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("test_flash_attn.py")]
        where = f"line {lines[-1].lineno}: {lines[-1].line}" if lines else "not begun"
        if isinstance(error, pytest.skip.Exception):  # of the file: nothing here or in tilewise asks for it
            return "skipped", where
        return "failed", f"{where}: {type(error).__name__} {error}".replace("\n", " ")


def run_share(options, share):
    """([(test, "passed" | "failed" | "skipped", reason)], {test: (cases drawn, cases that there are)}) of one process of several."""
    end = time.monotonic() + options.seconds
    torch.set_num_threads(max(1, torch.get_num_threads() // options.processes))
    tilewise.install_as_flash_attn(force=True)
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        module = load(prepare((options.clone / "tests" / "test_flash_attn.py").read_text()), folder)
        dice = random.Random(options.seed)
        part = options.k.removeprefix("not ")
        names = [name for name in TESTS if (part in name) == (part == options.k) and hasattr(module, name)]
        chosen = {name: drawn(parameters(getattr(module, name)), options.cases, options.longest, dice) for name in names}
        for turn, cases in enumerate(itertools.zip_longest(*(cases for cases, _ in chosen.values()))):
            for place, (name, case) in enumerate(zip(names, cases)):
                if case is None or (turn + place) % options.processes != share or time.monotonic() > end:
                    continue
                kind, reason = outcome(getattr(module, name), case)
                verdicts.append((name, kind, reason))
                print(f"{kind} {name} {case} {reason[:300]}", flush=True)
    return verdicts, {name: (len(cases), total) for name, (cases, total) in chosen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("-k", default="")
    options = parser.parse_args()
    if options.processes == 1:
        shares = [run_share(options, 0)]
    else:  # spawned, as a process that has asked for a device cannot fork
        with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
            shares = list(pool.map(run_share, itertools.repeat(options), range(options.processes)))
    verdicts = [verdict for share, _ in shares for verdict in share]
    kinds = ("passed", "failed", "skipped")
    for name, (count, total) in shares[0][1].items():
        of = [verdict for verdict in verdicts if verdict[0] == name]
        sums = ", ".join(f"{sum(v[1] == kind for v in of)} {kind}" for kind in kinds)
        print(f"{name}: {sums} of {count} drawn of {total}")
        for reason, times in Counter(reason for _, kind, reason in of if kind == "skipped").items():
            print(f"    {times} skipped at {reason}")
    sums = Counter(kind for _, kind, _ in verdicts)
    print(", ".join(f"{sums[kind]} {kind}" for kind in kinds))
    return 1 if sums["failed"] or not sums["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
