"""The programs of examples/python run; each checks its own results."""

import subprocess
import sys
import unittest
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


class Examples(unittest.TestCase):
    def run_program(self, name, *arguments):
        done = subprocess.run([sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, check=False,
                              timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout)

    def test_long_document(self):
        self.run_program("long_document.py", "1024")

    def test_images_and_text(self):
        self.run_program("images_and_text.py")

    def test_custom_mask(self):
        self.run_program("custom_mask.py")

    def test_rows_of_p(self):
        self.run_program("rows_of_p.py")

    @unittest.skipUnless(find_spec("torch"), "PyTorch is not installed")
    def test_packed_training(self):
        self.run_program("packed_training.py")

    def test_none_is_forgotten(self):
        tested = Path(__file__).read_text(encoding="utf-8")
        for program in EXAMPLES.glob("*.py"):
            self.assertIn(f'"{program.name}"', tested)


if __name__ == "__main__":
    unittest.main()
