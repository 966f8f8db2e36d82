"""The layers of the house: imports point one way, heavy modules are imported only where they are needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("npuc", "passes", "targets", "models")

# core <- passes <- targets <- driver, command line; models import the core only
LAYERS = {"core": 0, "models": 1, "passes": 1, "targets": 2, "top": 3}
TOP = {
    "npuc.driver",
    "npuc.cli",
    "npuc.__main__",
    "npuc.verification.accuracy",
    "npuc.verification.checking",
    "npuc.verification.floating",
    "npuc.verification.integer",
    "npuc.reports.summaries",
    "npuc.verification.metrics",
    "npuc.reports.comparison",
    "npuc.reports.sweep",
    "npuc.page.sweep",
    "npuc.reports.figures",
    "npuc.api",
    "npuc.session",
    "npuc.onnx_backend",
    "npuc.onnx_suite",
    "npuc.verification.bisection",
}

HEAVY = {"onnx", "onnxruntime", "networkx", "rich", "amaranth"}
LIGHT = (
    "npuc", "npuc.errors", "npuc.ir", "npuc.ops", "npuc.pipeline", "npuc.passes", "npuc.bits", "npuc.program",
    "npuc.target", "npuc.storage.data", "npuc.allocation", "npuc.host", "npuc.storage.records", "npuc.interpreter", "npuc.cli",
    "npuc.storage.machine_files", "npuc.models", "npuc.quantize", "npuc.quantize.network.build", "npuc.driver",
    "npuc.targets.easynpu.machine.isa", "npuc.targets.easynpu.target", "npuc.targets.easynpu.simulate.simulator",
    "npuc.targets.bm1684.machine.packing",
)  # fmt: skip


def _files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def _module(path: Path) -> str:
    """The name under which a file is imported: passes/x.py is npuc.passes.x."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "npuc" else ("npuc", *parts))
    return name.removesuffix(".__init__")


def _imports(path: Path, *, everywhere: bool = True) -> Iterator[tuple[str, int]]:
    """Module names that a file imports, with the line; with everywhere also inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else _top_level(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run at import: not those of functions, nor under TYPE_CHECKING."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


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


@pytest.mark.parametrize("path", _files(), ids=_module)
def test_imports_point_one_way(path: Path) -> None:
    module = _module(path)
    upward = [
        f"line {line}: {name}"
        for name, line in _imports(path)
        if name.startswith("npuc.") and _depends_upward(module, name)
    ]
    assert not upward, f"{module} imports {upward}"


@pytest.mark.parametrize("path", _files(), ids=_module)
def test_passes_targets_and_models_are_never_imported_bare(path: Path) -> None:
    bare = [name for name, _ in _imports(path) if name.split(".")[0] in ("passes", "targets", "models")]
    assert not bare


def test_one_target_does_not_import_another() -> None:
    for path in (ROOT / "targets").rglob("*.py"):
        own = ".".join(_module(path).split(".")[:3])
        others = [
            name
            for name, _ in _imports(path)
            if name.startswith("npuc.targets.") and not name.startswith((f"{own}.", own))
        ]
        assert not others, path


def _imported_by(module: str) -> set[str]:
    code = f"import {module}, sys; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.split()
    )


@pytest.mark.parametrize("path", _files(), ids=_module)
def test_no_module_of_the_light_ones_imports_a_heavy_one_at_its_top(path: Path) -> None:
    if _module(path) in LIGHT:
        heavy = {name.split(".")[0] for name, _ in _imports(path, everywhere=False)} & HEAVY
        assert not heavy


@pytest.mark.parametrize(
    "module", ["npuc.cli", "npuc.driver", "npuc.targets.easynpu.target", "npuc.quantize.network.build"]
)
def test_importing_does_not_load_heavy_modules_through_others(module: str) -> None:
    assert not _imported_by(module) & HEAVY


def test_every_module_is_reached_by_the_walk() -> None:
    modules = {_module(path) for path in _files()}
    assert {
        "npuc",
        "npuc.driver",
        "npuc.passes",
        "npuc.models.digits",
        "npuc.targets.easynpu.machine.isa",
    } <= modules


@pytest.mark.parametrize(
    ("module", "imported", "upward"),
    [
        ("npuc.ir", "npuc.ops", False),
        ("npuc.ir", "npuc.passes.rewriting.layout", True),
        ("npuc.ir", "npuc.models", True),
        ("npuc.passes.rewriting.layout", "npuc.ir", False),
        ("npuc.passes.rewriting.layout", "npuc.targets.easynpu", True),
        ("npuc.passes.rewriting.layout", "npuc.models", True),
        ("npuc.targets.easynpu.machine.isa", "npuc.passes", False),
        ("npuc.targets.easynpu.machine.isa", "npuc.driver", True),
        ("npuc.models.digits", "npuc.ir", False),
        ("npuc.models.digits", "npuc.passes", True),
        ("npuc.models.digits", "npuc.driver", True),
        ("npuc.driver", "npuc.targets.easynpu", False),
        ("npuc.cli.running", "npuc.models", False),
        ("npuc.cli.running", "npuc.driver", False),
    ],
)
def test_the_direction_of_an_import_is_judged_by_its_layers(module: str, imported: str, upward: bool) -> None:
    assert _depends_upward(module, imported) is upward
