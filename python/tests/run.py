#!/usr/bin/env python3
"""Runs the tests of the installed package: run.py [PATTERN...]; the last line is "N passed, N failed, N skipped"."""

import sys
import unittest
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent


class Counting(unittest.TextTestResult):
    """testsRun counts skipped tests in some versions of Python and not in others."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main(patterns):
    sys.path.insert(0, str(FOLDER))
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{pattern}*" for pattern in patterns] or None
    result = unittest.TextTestRunner(resultclass=Counting).run(loader.discover(str(FOLDER)))
    for reason, count in Counter(reason for _, reason in result.skipped).items():
        print(f"skipped {count}: {reason}")
    failed = len({test.id().split(" ")[0] for test, _ in result.failures + result.errors})
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or not result.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
