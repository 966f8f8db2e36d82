"""What many tests share: the folder of trained models, and onnxruntime as the reference."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, settings

from npuc.ir import CHECK, Array
from npuc.reference import has_integer_products, integers_are_exact, session
from npuc.system import confinement
from tests.given import GIVEN

settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
"""Every run draws the same examples, however long it takes; `pytest --hypothesis-profile default` draws others."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
# Arrays that were freed stay with the process: to get them from the kernel anew takes a tenth of the time.
if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    for parameter, value in ((MMAP_THRESHOLD, 1 << 25), (TRIM_THRESHOLD, (1 << 31) - 1)):
        ctypes.CDLL(None).mallopt(parameter, value)

os.environ["NPUC_TRACEBACK"] = "1"  # a defect fails a test, whatever error the test expects

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]


TESTS = Path(__file__).resolve().parent
TIERS: Mapping[str, list[str]] = json.loads((TESTS / "tiers.json").read_text(encoding="utf-8"))
"""The fast files, and the slow tests; benchmarks/tiers.py writes it."""
FAST, SLOW = set(TIERS["fast"]), set(TIERS["slow"])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m fast` does not import the other files, which takes as long as half of its tests."""
    if config.option.markexpr != "fast" or not collection_path.is_relative_to(TESTS) or collection_path.is_dir():
        return None
    return collection_path.relative_to(TESTS).as_posix() not in FAST or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests fast or slow; slow ones come first and fast ones last, so that all processes end together."""
    tiers: dict[pytest.Item, int] = {}
    for item in items:
        file = item.path.relative_to(TESTS).as_posix()
        slow = f"{file}::{item.name.partition('[')[0]}" in SLOW or item.get_closest_marker("slow") is not None
        if slow or file in FAST:
            item.add_marker("slow" if slow else "fast")
        tiers[item] = 0 if slow else 2 if file in FAST else 1
    items.sort(key=tiers.__getitem__)


TOGETHER = (
    ("docs/test_pages.py", "easynpu/test_node_cases.py", "frontend/test_node_cases.py", "test_backend.py"),
    ("easynpu_rtl/test_command.py", "easynpu_rtl/test_networks.py"),
    ("easynpu_rtl/test_mutants.py", "easynpu_rtl/test_programs.py"),
)
"""Files whose tests one process runs, because it makes once what takes long: onnx its node cases, Amaranth a core.

Their file, not a mark: pytest 9.2 no longer shows xdist (3.8) the groups of marked tests.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A process runs all tests of a file, or of files that belong together: their fixtures are built once.

    Test by test, the bookkeeping of 13,000 tests takes half a minute.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return process_of(nodeid)

    config.option.loadscopereorder = False
    return ByFile(config, log) if config.option.dist == "loadfile" else None


def process_of(nodeid: str) -> str:
    """The name under which a process runs a test, and all others with the same name."""
    file = nodeid.partition("::")[0]
    found = [files[0] for files in TOGETHER if file.removeprefix("tests/") in files]
    return found[0] if found else file


CONFINED = (
    "cli/test_damaged_artefacts", "cli/test_greedy_files", "cli/test_run", "cli/test_verify",
    "cli/test_wrong_data", "cli/test_wrong_models", "compiling/test_proof", "docs", "frontend/test_folding",
    "frontend/test_fuzz", "frontend/test_refusals", "fuzz", "onnx_files/test_external_data",
    "onnx_files/test_heavy_weights", "onnx_files/test_integer_products", "regions/test_commands",
    "regions/test_custom_ops", "regions/test_forged", "regions/test_regions_in_c", "system/test_budget",
    "test_api", "test_reference", "verification",
)  # fmt: skip
"""Tests of what confinement is for, and of every command and call in which it is: others' models and artefacts.

The others run onnxruntime in their own process: to fork one so large takes as long as a small compile.
"""
CHECKED = ("easynpu_rewrites", "fuzz", "graphs", "passes")
"""Folders of tests in which every graph is verified anew, whatever was verified of its nodes before.

Elsewhere graphs are checked as for users: the full check takes a sixth of a compile.
"""


@pytest.fixture(autouse=True, scope="module")
def _settings_of_the_room(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether graphs are checked fully, and onnxruntime is confined."""
    file = request.path.relative_to(TESTS)
    with pytest.MonkeyPatch.context() as patch:
        if file.parts[0] in CHECKED and CHECK not in os.environ:
            patch.setenv(CHECK, "full")
        if not file.as_posix().startswith(CONFINED):
            patch.setattr(confinement, "AVAILABLE", False)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Trained models, tasks and programs; a test is skipped where what it takes of them is not here."""
    return GIVEN


@pytest.fixture(scope="session")
def exact_integers() -> None:
    """What integers are compared with is exact on this processor: else nothing can be told of them."""
    assert integers_are_exact()


@pytest.fixture(scope="session")
def onnxruntime_values() -> Reference:
    """The outputs of a model under onnxruntime, by name; without its optimisations unless integers need them."""

    def values(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
        run = session(model, few_runs=not has_integer_products(model))
        names: Sequence[str] = [each.name for each in run.get_outputs()]
        found = run.run(list(names), dict(feeds))
        return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}

    return values


def pytest_collection_finish() -> None:
    """What was collected stays: the garbage collector need not look through it again and again.

    Nor does it look through new objects more often than in a command.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)  # npuc.__main__, whose import resets how Ctrl-C is handled


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, and how many for each reason."""
    reasons = Counter(str(each.longrepr[2]) for each in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
