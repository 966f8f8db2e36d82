"""ONNX's backend test suite through npuc.backend on every target, and the page docs/onnx-backend.md.

    python benchmarks/onnx_backend.py [--check] [--jobs N] [NAME ...]

Writes the page; with names, prints the tests whose names contain one of them. --check: exit code 1 if a test
fails.
"""

from __future__ import annotations

import os
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import onnx

from npuc.onnx_suite import MOST_STEPS, Suite, runtime_suite, suite
from npuc.registry import TARGETS

ONNX_VERSION = "1.23.2"
"""The tests are those of the onnx package, which differ by version."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "onnx-backend.md"
CATEGORIES = {
    "NodeModel": "single operators",
    "SimpleModel": "small graphs",
    "PyTorchConvertedModel": "layers converted from PyTorch",
    "PyTorchOperatorModel": "operators exported by PyTorch",
}
"""The groups of the suite; the networks of RealModel are left out, as all their weights are equal."""
PLACES = {"npu": "all on the NPU", "mixed": "mixed", "host": "all on the host"}
SEVERAL = "(several nodes)"


@dataclass(frozen=True)
class Result:
    """The result of a test: passed, refused or failed, with the reason."""

    name: str
    category: str
    operator: str
    kind: str
    reason: str = ""
    place: str | None = None
    """Where a passed test ran: on the NPU, mixed, or on the host."""


def results(names: Sequence[str], target: str) -> list[Result]:
    """Runs every test of the suite, or those that contain one of the names, on a target."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_results(names, target))


def _results(names: Sequence[str], target: str) -> Iterator[Result]:
    cases = unittest.defaultTestLoader
    tests = suite(target, __name__)
    for title, case in tests.test_cases.items():
        category = title.removeprefix("OnnxBackend").removesuffix("Test")
        for name in cases.getTestCaseNames(case) if category in CATEGORIES else ():
            wanted = not names or any(each in name for each in names)
            if wanted and name.endswith("_cpu"):
                tests.runs.clear()
                yield _result(tests, case(name), category, name)


def _result(tests: Suite, test: unittest.TestCase, category: str, name: str) -> Result:
    run = getattr(test, name)
    try:
        run()
        kind, reason = "passed", ""
    except unittest.SkipTest as refusal:
        kind, reason = "refused", str(refusal).splitlines()[0]
    except Exception as error:  # any other exception of the suite or npuc is a failure
        kind, reason = "failed", " ".join(f"{type(error).__name__}: {error}".split())
    place = tests.place() if kind == "passed" else None
    return Result(
        name.removeprefix("test_").removesuffix("_cpu"), category, operator_of(name), kind, reason, place
    )


def operators() -> Mapping[str, str]:
    """The operator of every test of a single node."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    return {
        f"{case.name}_cpu": case.model.graph.node[0].op_type
        for case in cases
        if case.model is not None and len(case.model.graph.node) == 1
    }


_operators: dict[str, str] = {}


def operator_of(name: str) -> str:
    """The operator that a test is for."""
    if not _operators:
        _operators.update(operators())
    return _operators.get(name, SEVERAL)


INTRODUCTION = """# ONNX backend tests
<!-- written by benchmarks/onnx_backend.py; do not edit -->

The onnx package has a test suite for backends (`onnx.backend.test.BackendTest`). This page says how its tests of
onnx {version} end on every target, through the adapter [`npuc.backend`](api.md#onnx-backend): each model is
compiled, run by the simulator, and compared with the outputs that the test expects. *refused*: npuc says which
operator, type or shape it does not take, with a code ([errors](errors.md)). *failed*: anything else.

Inputs are data; where a target refuses that, all inputs but the first become constants (weights, shapes); where
it refuses that too, the host runs what the target does not ([host regions](regions.md)). *All on the NPU*: the
program is the target's own, without a host region. The inputs of the test calibrate. fp32 targets must reach the
suite's own tolerances (relative {rtol:g}, absolute {atol:g}). On int8 targets a program with instructions may be
off by {most:g} quantisation steps of the output: the scale of the int8 tensor that the output is, or is made of
by movement; where the host computes the output in float32, 1/127 of its largest magnitude. Selections (Max, Min,
MaxPool, ReduceMax, ReduceMin) may be off by half
a step of the input as well; outputs of 8 bits by 1. What the host computes alone must reach the suite's
tolerances.

`_expanded` tests, which spell an operator by others, and what is not of a single node count as *{several}*
below.
"""


def page(found: Mapping[str, Sequence[Result]], runtime: frozenset[str]) -> str:
    """The text of the page. runtime: the tests that onnxruntime passes."""
    lines = [
        INTRODUCTION.format(version=ONNX_VERSION, rtol=1e-3, atol=1e-7, most=MOST_STEPS, several=SEVERAL[1:-1])
    ]
    lines += ["## Targets", "", "Where the tests that pass run; all the others are refused or fail.", ""]
    lines += [
        f"| target | {' | '.join(PLACES.values())} | passed | refused | failed |",
        f"|--|{'--|' * (len(PLACES) + 3)}",
    ]
    lines += [f"| {target} | {' | '.join(map(str, counts(results)))} |" for target, results in found.items()]
    lines += ["", f"onnxruntime itself passes {len(runtime)} of them. Of these pass:", ""]
    for target, results in found.items():
        both = sum(each.kind == "passed" and each.name in runtime for each in results)
        lines.append(f"- {target}: {both:,} ({100 * both / max(len(runtime), 1):.1f} %)")
    return "\n".join([*lines, "", *_by_operator(found), "", *_never(found), *_failures(found), ""])


def _by_operator(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """The tests of single nodes, a row for all operators with the same figures."""
    counts = Counter(each.operator for each in next(iter(found.values())))
    passed = {name: {target: _pass_count(found[target], name) for target in found} for name in sorted(counts)}
    alike: dict[tuple[str, str], list[str]] = {}
    for name, figures in passed.items():
        alike.setdefault((str(counts[name]), _figures(figures)), []).append(name)
    host = sum(len(names) for (count, text), names in alike.items() if text == f"{count} (0)")
    lines = [
        "## Operators",
        "",
        "Tests of a single node that pass, and in brackets those that run on the NPU alone, if not all do.",
        "",
    ]
    lines += ["| operators | tests of each | passed |", "|--|--|--|"]
    for (count, text), names in alike.items():
        if text not in ("0", f"{count} (0)"):
            lines.append(f"| {', '.join(names)} | {count} | {text} |")
    return [*lines, "", f"All tests of the other {host} operators pass, on the host of every target."]


def _figures(by_target: Mapping[str, str]) -> str:
    """One figure if all targets have it, otherwise each with its targets."""
    targets: dict[str, list[str]] = {}
    for target, figure in by_target.items():
        targets.setdefault(figure, []).append(target)
    if len(targets) == 1:
        return next(iter(targets))
    return "; ".join(f"{', '.join(names)}: {figure}" for figure, names in targets.items())


def _never(found: Mapping[str, Sequence[Result]]) -> list[str]:
    passing = {each.operator for results in found.values() for each in results if each.kind == "passed"}
    others = sorted({each.operator for results in found.values() for each in results} - passing)
    return [f"Refused on every target: {', '.join(others)}."] if others else []


def _failures(found: Mapping[str, Sequence[Result]]) -> list[str]:
    failed = [(target, each) for target, results in found.items() for each in results if each.kind == "failed"]
    rows = [f"| {target} | {each.name} | {each.reason[:200].replace('|', '/')} |" for target, each in failed]
    return ["", "## Failures", "", "| target | test | what |", "|--|--|--|", *rows] if rows else []


def _pass_count(results: Sequence[Result], operator: str) -> str:
    """How many pass and, in brackets, how many of them on the NPU alone, if the host runs any."""
    passed = [each for each in results if each.operator == operator and each.kind == "passed"]
    alone = sum(each.place == "npu" for each in passed)
    return str(len(passed)) if alone == len(passed) else f"{len(passed)} ({alone})"


def counts(results: Sequence[Result]) -> list[int]:
    """The numbers of tests by place, then of those passed, refused and failed."""
    places = [sum(each.place == place for each in results) for place in PLACES]
    return [*places, *(sum(each.kind == kind for each in results) for kind in ("passed", "refused", "failed"))]


def runtime() -> frozenset[str]:
    """The tests that onnxruntime itself passes, by name."""
    found: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for title, case in runtime_suite(__name__).test_cases.items():
            category = title.removeprefix("OnnxBackend").removesuffix("Test")
            for name in unittest.defaultTestLoader.getTestCaseNames(case) if category in CATEGORIES else ():
                outcome = unittest.TestResult()
                if name.endswith("_cpu"):
                    case(name).run(outcome)
                    if outcome.wasSuccessful() and not outcome.skipped:
                        found.add(name.removeprefix("test_").removesuffix("_cpu"))
    return frozenset(found)


@click.command(help=__doc__)
@click.option("--check", is_flag=True)
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count(), help="Targets side by side.")
@click.argument("names", nargs=-1)
def main(check: bool, jobs: int, names: tuple[str, ...]) -> None:
    """Writes the page, or prints the named tests."""
    if onnx.__version__ != ONNX_VERSION:
        raise click.UsageError(f"the tests are those of onnx {ONNX_VERSION}, not {onnx.__version__}")
    with ProcessPoolExecutor(jobs) as pool:
        found = dict(zip(TARGETS, pool.map(partial(results, names), TARGETS), strict=True))
    if names:
        for target, each in ((target, each) for target, tests in found.items() for each in tests):
            click.echo(f"{target} {each.name}: {each.kind} {each.reason}")
    else:
        PAGE.write_text(page(found, runtime()), encoding="utf-8")
    failed = [(target, each) for target, tests in found.items() for each in tests if each.kind == "failed"]
    for target, each in failed:
        click.echo(f"{target} {each.name}: {each.reason[:300]}", err=True)
    sys.exit(1 if failed and check else 0)


if __name__ == "__main__":
    main()
