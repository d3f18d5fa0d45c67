#!/usr/bin/env python3
"""Runs FlashAttention's own tests against tilewise.install_as_flash_attn().

    scripts/flash_attn_tests.py CLONE [--cases N] [--longest S] [-k NAME] [--seed N]

CLONE is a clone of FlashAttention's repository (github.com/Dao-AILab/flash-attention); its tests/test_flash_attn.py is read,
nothing of it is kept. It has some 100,000 cases: a seeded sample of N (default 200) of those whose sequences are at most S
(default 512) rows is run. Without a GPU the device's name is replaced, so that the same cases run on the CPU. Needs
tilewise, PyTorch, pytest and einops. The last line is the sum; failures are listed with their reason.
"""

import argparse
import random
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tilewise

TESTS = ("test_flash_attn_output", "test_flash_attn_varlen_output", "test_flash_attn_qkvpacked",
         "test_flash_attn_varlen_qkvpacked", "test_flash_attn_causal", "test_flash_attn_varlen_causal",
         "test_flash_attn_kvcache", "test_flash_attn_bwd_transpose", "test_flash_attn_bwd_overflow",
         "test_flash_attn_bwd_varlen_overflow", "test_flash_attn_deterministic", "test_flash_attn_varlen_deterministic")


class Sample:
    """A pytest plugin: which cases run, and what became of them."""

    def __init__(self, options):
        self.options, self.passed, self.failed, self.skipped = options, 0, [], {}

    def pytest_collection_modifyitems(self, items):
        def wanted(item):
            if item.originalname not in TESTS or self.options.k not in item.originalname:
                return False
            sizes = [value for name, value in item.callspec.params.items() if "seqlen" in name and isinstance(value, int)]
            return max(sizes, default=0) <= self.options.longest

        found = [item for item in items if wanted(item)]
        print(f"{len(items)} cases in the file, {len(found)} within --longest {self.options.longest}")
        items[:] = random.Random(self.options.seed).sample(found, min(self.options.cases, len(found)))

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "skipped"
            self.skipped[why] = self.skipped.get(why, 0) + 1
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failed.append((report.nodeid.split("::")[-1], str(crash.message if crash else report.longrepr).splitlines()[0]))
        elif report.when == "call":
            self.passed += 1


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-k", default="")
    options = parser.parse_args()
    tilewise.install_as_flash_attn(force=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test_flash_attn.py"
        file.write_text(prepare((options.clone / "tests" / "test_flash_attn.py").read_text()))
        sample = Sample(options)
        functions = [f"{file}::{name}" for name in TESTS if options.k in name]  # the others' cases need not be made
        pytest.main([*functions, "-q", "--no-header", "--no-summary", "--tb=short", "-p", "no:cacheprovider",
                     f"--rootdir={folder}"], plugins=[sample])
    for name, reason in sample.failed:
        print(f"failed {name}: {reason[:200]}")
    for reason, count in sample.skipped.items():
        print(f"skipped {count}: {reason[:200]}")
    print(f"{sample.passed} passed, {len(sample.failed)} failed, {sum(sample.skipped.values())} skipped")
    return 1 if sample.failed or not sample.passed else 0


if __name__ == "__main__":
    sys.exit(main())
