"""The package itself: what importing costs and brings in, docstrings, the GIL, threads, looking inside."""

import doctest
import importlib
import importlib.metadata
import importlib.resources
import os
import subprocess
import sys
import threading
import time
import unittest
from importlib.util import find_spec

import numpy as np
from arrays import Source, in_threads

import tilewise

MODULES = ["_attention", "_cache", "_install", "_looking", "_verify"]
if find_spec("torch"):
    MODULES += ["flash_attn", "torch"]


def run(code, **variables):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120,
                          env={**os.environ, **variables})


class Import(unittest.TestCase):
    def test_brings_in_no_framework(self):
        done = run("import sys, tilewise; print({'numpy', 'torch', 'jax', 'cupy', 'transformers'} & set(sys.modules))")
        self.assertEqual(done.stdout.strip(), "set()", done.stderr)

    def test_takes_under_100_ms(self):
        code = "import time; t = time.process_time(); import tilewise; print(time.process_time() - t)"
        self.assertLess(min(float(run(code).stdout) for _ in range(5)), 0.1)

    def test_a_missing_torch_is_one_line_and_only_when_asked_for(self):
        done = run("import sys; sys.modules['torch'] = None; import tilewise; print('fine'); tilewise.torch")
        self.assertEqual(done.stdout.strip(), "fine")
        self.assertIn("tilewise.torch needs PyTorch", done.stderr.splitlines()[-1])
        for asked in ("install_as_flash_attn()", "flash_attn", "flash_attn_interface", "rotary", "bert_padding"):
            done = run(f"import sys; sys.modules['torch'] = None; import tilewise; tilewise.{asked}")
            self.assertIn("tilewise.torch needs PyTorch (pip install torch), as do flash_attn's", done.stderr.splitlines()[-1])

    def test_unknown_names(self):
        with self.assertRaisesRegex(AttributeError, "no attribute 'jax'"):
            tilewise.jax

    def test_version_and_types(self):
        self.assertEqual(importlib.metadata.version("tilewise"), tilewise.__version__)
        files = {file.name for file in importlib.resources.files(tilewise).iterdir()}
        self.assertLessEqual({"py.typed", "_core.pyi"}, files)


    def test_licences_of_what_is_compiled_in(self):
        names = {file.name for file in importlib.metadata.files("tilewise") if "licenses" in file.parts}
        self.assertLessEqual({"LICENSE", "nanobind.txt", "robin_map.txt"}, names)


class Documentation(unittest.TestCase):
    def test_examples_run(self):
        for name in MODULES:
            module = importlib.import_module(f"tilewise.{name}")
            failed, tried = doctest.testmod(module)
            self.assertEqual(failed, 0, name)
            self.assertGreater(tried, 0, name)

    def test_every_public_function_has_an_example(self):
        for name in tilewise.__all__:
            thing = getattr(tilewise, name)
            self.assertTrue(thing.__doc__, name)
            if not isinstance(thing, type):
                self.assertIn(">>>", thing.__doc__, name)


class Running(unittest.TestCase):
    def test_the_gil_is_free_during_a_call(self):
        q = Source(1).normal(1, 1500, 4, 64)
        tilewise.attention(q, q, q)
        self.assertLess(min(self.longest_gap(q) for _ in range(4)), 0.5)

    def longest_gap(self, q):
        """The longest time that this thread stood still during another's call, as a share of the call: 1 if it held the GIL."""
        spans, done = [], threading.Event()

        def call():
            start = time.perf_counter()
            tilewise.attention(q, q, q)
            spans.append(time.perf_counter() - start)
            done.set()

        ticks = [time.perf_counter()]
        thread = threading.Thread(target=call)
        thread.start()
        while not done.is_set():
            ticks.append(time.perf_counter())
        thread.join()
        return max(b - a for a, b in zip(ticks, ticks[1:])) / spans[0]

    def test_many_threads_at_once(self):
        q = Source(2).normal(2, 65, 2, 32)
        want = tilewise.attention(q, q, q, causal=True)
        for results in in_threads(8, lambda _: [tilewise.attention(q, q, q, causal=True) for _ in range(20)]):
            for o in results:
                self.assertTrue(np.array_equal(o, want))

    def test_variables_of_the_environment(self):
        done = run("import tilewise; print(tilewise.info()['threads'])", TILEWISE_THREADS="3")
        self.assertEqual(done.stdout.strip(), "3", done.stderr)
        code = "import numpy as np, tilewise; q = np.ones((1, 2, 1, 4), np.float32); tilewise.attention(q, q, q)"
        self.assertIn("TILEWISE_THREADS", run(code, TILEWISE_THREADS="x").stderr.splitlines()[-1])
        forced = run(code, TILEWISE_KERNEL="forward_reference_f64", TILEWISE_LOG="stderr")
        self.assertIn("forward_reference_f64", forced.stderr)

    def test_a_child_after_fork(self):
        done = run("""
import os, numpy as np, tilewise
q = np.random.default_rng(3).standard_normal((1, 300, 2, 32), np.float32)
want = tilewise.attention(q, q, q)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(tilewise.attention(q, q, q), want) else 1)
print(os.waitpid(child, 0)[1])
""")
        self.assertEqual(done.stdout.strip(), "0", done.stderr)


class Looking(unittest.TestCase):
    def test_plan(self):
        q = Source(4).normal(2, 300, 4, 64)
        plan = tilewise.plan(q, q, q, causal=True)
        self.assertRegex(plan.kernel, r"^forward_\w+_f32_")
        self.assertGreater(plan.tile_m * plan.tile_n * plan.threads, 0)
        self.assertEqual(plan, tilewise.plan(q, q, q, causal=True))
        self.assertNotEqual(plan, tilewise.plan(q, q, q))
        self.assertIn(plan.kernel, repr(plan))
        with self.assertRaisesRegex(ValueError, "no_such"):
            tilewise.plan(q, q, q, kernel="no_such")

    def test_explain(self):
        q = Source(4).normal(2, 300, 4, 64)
        text = tilewise.explain(q, q, q, causal=True)
        self.assertIn(tilewise.plan(q, q, q, causal=True).kernel, text)
        self.assertIn("causal", text)

    def test_info(self):
        info = tilewise.info()
        self.assertEqual(info["version"], tilewise.__version__)
        self.assertIn("scalar", info["cpu"]["isa"])
        self.assertTrue(info["cuda"])


if __name__ == "__main__":
    unittest.main()
