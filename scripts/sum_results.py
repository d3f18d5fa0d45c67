#!/usr/bin/env python3
"""Prints "PASSED FAILED SKIPPED" for a folder that holds ctest.xml (CTest's JUnit) and gtest/<test>.xml.

A CTest test that left a GoogleTest report counts as its cases, any other as one. A program that fails without a failed
case (a crash, a sanitizer's report, a time-out) counts as one failure more.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def gtest_cases(report):
    passed = failed = skipped = 0
    for case in ET.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
        elif case.get("status") == "notrun" or case.find("skipped") is not None or case.get("result") == "skipped":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(folder):
    totals = [0, 0, 0]
    for test in ET.parse(folder / "ctest.xml").getroot().iter("testcase"):
        name, status = test.get("name"), test.get("status")
        counts = [int(status == "run"), int(status == "fail"), int(status not in ("run", "fail"))]
        report = folder / "gtest" / f"{name}.xml"
        if report.exists():
            try:
                cases = list(gtest_cases(report))
            except ET.ParseError:
                cases = [0, 0, 0]
            if status == "fail" and cases[1] == 0:
                cases[1] = 1
            counts = cases
        totals = [a + b for a, b in zip(totals, counts)]
    print(*totals)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
