#!/usr/bin/env python3
"""Runs the tests of the installed package: run.py [PATTERN...]; the last line is "N passed, N failed, N skipped"."""

import sys
import unittest
from pathlib import Path

FOLDER = Path(__file__).parent


def main(patterns):
    sys.path.insert(0, str(FOLDER))
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{pattern}*" for pattern in patterns] or None
    result = unittest.TextTestRunner(verbosity=1).run(loader.discover(str(FOLDER)))
    for test, why in result.skipped:
        print(f"skipped {test}: {why}")
    failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or result.testsRun == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
