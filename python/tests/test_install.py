"""install_as_flash_attn(): what programs that use flash_attn import, look up, and are refused."""

import os
import subprocess
import sys
import unittest
from importlib.util import find_spec

if not find_spec("torch"):
    raise unittest.SkipTest("PyTorch is not installed: install_as_flash_attn() is not tested")


class Install(unittest.TestCase):
    def run_code(self, code):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200,
                              env=dict(os.environ))

    def test_imports_versions_and_metadata(self):
        done = self.run_code("""
import importlib.metadata, importlib.util, tilewise
tilewise.install_as_flash_attn()
tilewise.install_as_flash_attn()
import flash_attn, flash_attn_interface
from flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.layers.rotary import apply_rotary_emb
from flash_attn.flash_attn_interface import flash_attn_with_kvcache
assert importlib.util.find_spec("flash_attn").name == "flash_attn"
assert importlib.metadata.version("flash_attn") == importlib.metadata.version("flash-attn") == flash_attn.__version__ == "2.8.3"
assert flash_attn_func is tilewise.flash_attn.flash_attn_func
assert flash_attn_interface.flash_attn_func is tilewise.flash_attn_interface.flash_attn_func
try:
    importlib.metadata.version("no-such-thing")
except importlib.metadata.PackageNotFoundError:
    print("fine")
""")
        self.assertEqual(done.stdout.strip(), "fine", done.stderr)

    def test_what_ring_attention_vllm_and_transformers_import(self):
        done = self.run_code("""
import importlib.metadata, importlib.util, inspect, tilewise
tilewise.install_as_flash_attn()
from flash_attn.ops.triton.rotary import apply_rotary
from flash_attn.flash_attn_interface import (_flash_attn_backward, _flash_attn_forward, _flash_attn_varlen_backward,
                                             _flash_attn_varlen_forward, _wrapped_flash_attn_forward)
from flash_attn.modules.mha import FlashCrossAttention, FlashSelfAttention
import flash_attn_interface, flash_attn_3
from flash_attn_3.flash_attn_interface import _flash_attn_backward as backward3, _flash_attn_forward as forward3
assert flash_attn_3.flash_attn_func is flash_attn_interface.flash_attn_func
import flash_attn.layers.rotary
assert {name for name in dir(flash_attn.layers.rotary) if not name.startswith("_")} == {
    "RotaryEmbedding", "apply_rotary", "apply_rotary_emb", "apply_rotary_emb_func", "apply_rotary_emb_kv_", "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch", "rotate_half"}
assert list(inspect.signature(_flash_attn_forward).parameters)[3:] == [
    "dropout_p", "softmax_scale", "causal", "window_size_left", "window_size_right", "softcap", "alibi_slopes", "return_softmax"]
of = importlib.metadata.packages_distributions()
assert (of["flash_attn"], of["flash_attn_interface"], of["flash_attn_3"]) == (["flash_attn"], ["flash_attn_3"], ["flash_attn_3"])
assert importlib.metadata.version("flash-attn-3") == "3.0.0" == flash_attn_3.__version__
print("fine")
""")
        self.assertEqual(done.stdout.strip(), "fine", done.stderr)

    def test_other_parts_of_flash_attn_say_that_they_are_not_there(self):
        done = self.run_code("""
import importlib.util, tilewise
tilewise.install_as_flash_attn()
for name in ("flash_attn.losses.cross_entropy", "flash_attn.ops.rms_norm", "flash_attn_2_cuda", "flash_attn_3_cuda", "flash_attn.cute"):
    try:
        __import__(name)
    except ImportError as error:
        print(error)
assert importlib.util.find_spec("flash_attn.cute") is importlib.util.find_spec("flash_attn_2_cuda") is None
try:
    from flash_attn.modules.mha import MHA
except ImportError as error:
    print(error)
""")
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 6, done.stderr)
        for name, line in zip(("flash_attn.losses", "flash_attn.ops.rms_norm", "flash_attn_2_cuda", "flash_attn_3_cuda", "flash_attn.cute"),
                              lines):
            self.assertRegex(line, f"^No module named '{name}': in the place of flash_attn, tilewise has attention and rotary embedding")
        self.assertRegex(lines[5], "cannot import name 'MHA' from 'flash_attn.modules.mha'.*tilewise")

    @unittest.skipUnless(find_spec("transformers"), "transformers is not installed")
    def test_transformers_takes_it_for_both_versions(self):
        done = self.run_code("""
import tilewise
tilewise.install_as_flash_attn()
from transformers.utils import import_utils
import_utils.is_torch_cuda_available = lambda: True
print(import_utils.is_flash_attn_2_available(), import_utils.is_flash_attn_3_available())
""")
        self.assertEqual(done.stdout.strip(), "True True", done.stderr)

    def test_a_real_one_stays(self):
        done = self.run_code("""
import sys, types, tilewise
sys.modules["flash_attn"] = types.ModuleType("flash_attn")
try:
    tilewise.install_as_flash_attn()
except RuntimeError as error:
    print(error)
tilewise.install_as_flash_attn(force=True)
import flash_attn
print(flash_attn.flash_attn_func.__module__)
""")
        self.assertIn("flash_attn is installed; accepted: install_as_flash_attn(force=True)", done.stdout)
        self.assertIn("tilewise.flash_attn", done.stdout.splitlines()[-1], done.stderr)


if __name__ == "__main__":
    unittest.main()
