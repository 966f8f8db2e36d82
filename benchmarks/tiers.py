"""Sorts the tests into tiers by duration: fast, the rest, slow. Writes tests/tiers.json.

    pytest -n 2 -m "" --junitxml report.xml && python benchmarks/tiers.py report.xml

slow: a test that takes more than MOST seconds with all its parameters. fast: whole files, the fastest first, as
long as they fit the budget together. A test in a new file is in neither until this runs again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import click

TIERS = Path(__file__).resolve().parents[1] / "tests" / "tiers.json"
MOST = 10.0
"""The most seconds of a test that is not slow."""
BUDGET = 45.0
"""Seconds of all fast tests in sequence."""


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(report: Path) -> None:
    """Reads a JUnit report of all tests and writes the tiers."""
    files: dict[str, float] = defaultdict(float)
    slow: set[str] = set()
    for case in ElementTree.parse(report).iter("testcase"):
        if not case.attrib["classname"]:  # a module that could not be imported
            continue
        *folders, module = case.attrib["classname"].split(".")[1:]
        file, seconds = "/".join((*folders, f"{module}.py")), float(case.attrib["time"])
        if seconds > MOST:
            slow.add(f"{file}::{case.attrib['name'].partition('[')[0]}")
        files[file] += seconds
    fast: list[str] = []
    left = BUDGET
    for file, seconds in sorted(files.items(), key=lambda each: each[1]):
        if seconds <= left and not any(name.startswith(f"{file}::") for name in slow):
            fast.append(file)
            left -= seconds
    TIERS.write_text(json.dumps({"fast": sorted(fast), "slow": sorted(slow)}, indent=1) + "\n", encoding="utf-8")
    print(f"{len(fast)} fast files in {BUDGET - left:.0f} s, {len(slow)} slow tests")


if __name__ == "__main__":
    main()
