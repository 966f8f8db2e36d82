"""The house: imports point one way, between packages and between their rooms; heavy modules load late."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("npuc", "passes", "targets", "models")

# core <- passes <- targets <- driver, command line; models import the core only
LAYERS = {"core": 0, "models": 1, "passes": 1, "targets": 2, "top": 3}
TOP = (
    "npuc.driver", "npuc.cli", "npuc.__main__", "npuc.verification", "npuc.reports.summaries",
    "npuc.reports.comparison", "npuc.reports.tables",
    "npuc.reports.sweep_page", "npuc.api", "npuc.cutting", "npuc.onnx_backend", "npuc.onnx_suite",
    "npuc.regions",
)  # fmt: skip

ROOMS = {
    "npuc.passes": "rewriting cleanup recognition fusion frames expansion scales",
    "npuc.quantize": "arithmetic calibration scales network improvement qdq table",
    "npuc.targets.easynpu": "flags machine layers plan program simulate network export rtl view target",
    "npuc.targets.nvdla": (
        "machine formats model arithmetic operations firmware emission selection program trace"
        " quantisation loadable export network target"
    ),
    "npuc.targets.bm1684": "machine quantisation lowering plan program simulate network export target",
}
"""The rooms of a package; each imports those before it only."""

HEAVY = {"onnx", "onnxruntime", "networkx", "amaranth"}
LIGHT = (
    "npuc", "npuc.errors", "npuc.ir", "npuc.ops", "npuc.pipeline", "npuc.passes", "npuc.program",
    "npuc.target", "npuc.samples.loading", "npuc.host.allocation", "npuc.host.step", "npuc.storage.records",
    "npuc.storage.bits", "npuc.ops.interpreter", "npuc.cli", "npuc.models", "npuc.quantize",
    "npuc.quantize.network.build", "npuc.running", "npuc.targets.easynpu.machine.isa",
    "npuc.targets.easynpu.target", "npuc.targets.easynpu.simulate.simulator",
    "npuc.targets.bm1684.machine.local_memory",
)  # fmt: skip


def _module(path: Path) -> str:
    """The name under which a file is imported: passes/x.py is npuc.passes.x."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "npuc" else ("npuc", *parts))
    return name.removesuffix(".__init__")


@cache
def _files() -> dict[str, Path]:
    return {_module(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def _statements(tree: ast.AST, *, everywhere: bool) -> Iterator[ast.stmt]:
    """Statements that run: not those under TYPE_CHECKING; those of functions only with everywhere."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.expr):  # holds no statements
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.stmt):
            yield child
        if everywhere or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _statements(child, everywhere=everywhere)


@cache
def _imports(module: str, *, everywhere: bool = True) -> tuple[tuple[str, int], ...]:
    """Names that a module imports, as module or module.attribute, with the line."""
    found: list[tuple[str, int]] = []
    tree = ast.parse(_files()[module].read_text(encoding="utf-8"))
    for node in _statements(tree, everywhere=everywhere):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return tuple(found)


def _edges() -> Iterator[tuple[str, str, int]]:
    """Every import of one module of ours by another: importer, imported, line."""
    for module in _files():
        for name, line in _imports(module):
            imported = name if name in _files() else name.rpartition(".")[0]
            if imported in _files() and imported not in ("npuc", module):
                yield module, imported, line


def _layer(module: str) -> str:
    if module == "npuc":  # the door: it names what the top offers, and imports it on demand
        return "top"
    second = module.split(".")[1] if "." in module else ""
    if second in ("passes", "targets", "models"):
        return second
    return "top" if any(module == top or module.startswith(f"{top}.") for top in TOP) else "core"


def _depends_upward(module: str, imported: str) -> bool:
    source, used = _layer(module), _layer(imported)
    if source == used:
        return False
    if source == "models" or used == "models":
        return source == "core" or (source == "models" and used != "core") or source in ("passes", "targets")
    return LAYERS[used] > LAYERS[source]


def test_imports_point_one_way() -> None:
    upward = [f"{a}:{line} imports {b}" for a, b, line in _edges() if _depends_upward(a, b)]
    assert not upward


def test_passes_targets_and_models_are_never_imported_bare() -> None:
    bare = [
        (module, name)
        for module in _files()
        for name, _ in _imports(module)
        if name.split(".")[0] in ("passes", "targets", "models")
    ]
    assert not bare


def test_one_target_does_not_import_another() -> None:
    def own(module: str) -> str:
        return ".".join(module.split(".")[:3])

    crossing = [
        f"{a}:{line} imports {b}"
        for a, b, line in _edges()
        if a.startswith("npuc.targets.") and b.startswith("npuc.targets.") and own(a) != own(b)
    ]
    assert not crossing


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_the_rooms_below_them(package: str) -> None:
    order = ROOMS[package].split()

    def room(module: str) -> str:
        return module[len(package) + 1 :].split(".")[0]

    inside = {module for module in _files() if module.startswith(f"{package}.")}
    assert {room(module) for module in inside} == set(order)
    upward = [
        f"{a}:{line} imports {b}"
        for a, b, line in _edges()
        if a in inside and b in inside and order.index(room(a)) < order.index(room(b))
    ]
    assert not upward


def test_no_modules_import_one_another_in_a_circle() -> None:
    graph: nx.DiGraph[str] = nx.DiGraph([(a, b) for a, b, _ in _edges()])
    assert not [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


def test_no_rooms_of_npuc_import_one_another_in_a_circle() -> None:
    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    graph: nx.DiGraph[str] = nx.DiGraph([(room(a), room(b)) for a, b, _ in _edges() if room(a) != room(b)])
    assert not [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


@pytest.mark.parametrize("module", LIGHT)
def test_no_module_of_the_light_ones_imports_a_heavy_one_at_its_top(module: str) -> None:
    assert not {name.split(".")[0] for name, _ in _imports(module, everywhere=False)} & HEAVY


@pytest.mark.parametrize(
    "module", ["npuc.cli", "npuc.running", "npuc.targets.easynpu.target", "npuc.quantize.network.build"]
)
def test_importing_does_not_load_heavy_modules_through_others(module: str) -> None:
    code = f"import {module}, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
    assert not set(loaded) & HEAVY


@pytest.mark.parametrize(("module", "imported", "upward"), [
    ("npuc.ir", "npuc.ops", False), ("npuc.ir", "npuc.passes.rewriting.layout", True),
    ("npuc.ir", "npuc.models", True), ("npuc.passes.rewriting.layout", "npuc.ir", False),
    ("npuc.passes.rewriting.layout", "npuc.targets.easynpu", True),
    ("npuc.passes.rewriting.layout", "npuc.models", True),
    ("npuc.targets.easynpu.machine.isa", "npuc.passes", False),
    ("npuc.targets.easynpu.machine.isa", "npuc.driver", True), ("npuc.models.digits", "npuc.ir", False),
    ("npuc.models.digits", "npuc.passes", True), ("npuc.models.digits", "npuc.driver", True),
    ("npuc.driver", "npuc.targets.easynpu", False), ("npuc.cli.running", "npuc.models", False),
    ("npuc.cli.running", "npuc.driver", False),
])  # fmt: skip
def test_the_direction_of_an_import_is_judged_by_its_layers(module: str, imported: str, upward: bool) -> None:
    assert _depends_upward(module, imported) is upward


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
def test_listing_a_program_imports_no_compiler(target: str, tmp_path: Path) -> None:
    import npuc
    from npuc.models.digits import FOLDER

    path = tmp_path / "digits.npu"
    npuc.compile(FOLDER / "digits.onnx", target=target, calibration=FOLDER / "digits_calibration.npz").save(path)
    command = [sys.executable, "-X", "importtime", "-m", "npuc", "dump", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert re.findall(r"npuc\.(?:passes|quantize|frontend)[\w.]*", done.stderr) == []
