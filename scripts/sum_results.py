#!/usr/bin/env python3
"""Prints "PASSED FAILED SKIPPED" for a folder that holds ctest.xml (CTest's JUnit) and gtest/<test>.xml.

A CTest test that left a GoogleTest report counts as its cases; one whose last line is "N passed, N failed[, N skipped]"
counts as that line says; any other as one. A program that fails without a failed case (a crash, a sanitizer's report, a
time-out) counts as one failure more.
"""

import re
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


def printed_sum(output):
    lines = output.strip().splitlines()
    match = re.fullmatch(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?", lines[-1].strip()) if lines else None
    return [int(n or 0) for n in match.groups()] if match else None


def counts_of(test, report):
    status = test.get("status")
    cases = printed_sum(test.findtext("system-out") or "")
    if report.exists():
        try:
            cases = list(gtest_cases(report))
        except ET.ParseError:
            cases = [0, 0, 0]
    if cases is None:
        skip = test.find("skipped")
        skipped = status == "disabled" or (skip is not None and skip.get("message", "").startswith("SKIP_"))
        return [int(status == "run"), int(status != "run" and not skipped), int(skipped)]
    if status == "fail" and cases[1] == 0:
        cases[1] = 1
    return cases


def main(folder):
    totals = [0, 0, 0]
    for test in ET.parse(folder / "ctest.xml").getroot().iter("testcase"):
        counts = counts_of(test, folder / "gtest" / f"{test.get('name')}.xml")
        totals = [a + b for a, b in zip(totals, counts)]
    print(*totals)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
