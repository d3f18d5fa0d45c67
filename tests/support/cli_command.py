"""What the tests of the command share: tensors, a folder for each test, runs of the command, and what a refusal is.

Standard library alone.
"""

import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import safetensors_file as st  # noqa: E402

DONE, WRONG, BAD_INPUT, CANNOT_RUN = 0, 1, 2, 3


def tensor(shape, seed=1, dtype="F32"):
    source = random.Random(seed)
    return st.Tensor.of(dtype, list(shape), [source.gauss(0, 1) for _ in range(math.prod(shape))])


def integers(values, dtype="I32", shape=None):
    return st.Tensor.of(dtype, shape or [len(values)], values)


def qkv(batch=2, seqlen_q=5, seqlen_kv=7, heads=2, heads_kv=None, dim=4, dim_v=None, dtype="F32"):
    heads_kv, dim_v = heads_kv or heads, dim_v or dim
    return {"q": tensor((batch, seqlen_q, heads, dim), 1, dtype), "k": tensor((batch, seqlen_kv, heads_kv, dim), 2, dtype),
            "v": tensor((batch, seqlen_kv, heads_kv, dim_v), 3, dtype)}


def raw(header, data=b"", length=None):
    header = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


class Command(unittest.TestCase):
    tilewise = None  # the command's path

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.source, self.target = str(self.at("in.safetensors")), self.at("out.safetensors")

    def at(self, name):
        return Path(self.folder.name, name)

    def run_words(self, *words, limits=None, env=None):
        return subprocess.run([Command.tilewise, *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                              preexec_fn=limits, env={**os.environ, **(env or {})})

    def attend(self, tensors, *words, **options):
        st.write(self.source, tensors)
        return self.run_words("attend", self.source, "-o", self.target, *words, **options)

    def results(self, tensors, *words):
        done = self.attend(tensors, *words)
        self.assertEqual(done.returncode, DONE, done.stderr)
        return st.read(self.target)[1]

    def refused(self, done, status, *says):
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("warning:")]
        self.assertTrue(lines and lines[0].startswith("tilewise"), done.stderr)
        if status == BAD_INPUT:
            self.assertEqual(len(lines), 1, done.stderr)
        for words in says:
            self.assertIn(words, done.stderr)
        self.assertFalse(self.target.exists(), "an output was written")
        left = [p.name for p in Path(self.folder.name).iterdir() if ".tmp." in p.name]
        self.assertFalse(left, "a temporary file was left")


def main(usage):
    """Runs the tests of the script that calls it: SCRIPT build/bin/tilewise [-k NAME]."""
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        sys.exit(usage)
    Command.tilewise = str(Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=1)
