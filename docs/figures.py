"""Measures the figures of README and pages: docs/figures.json, the tables made of it, and the picture of a trace.

    python docs/figures.py [TABLE]..

measures all, or those tables. tests/test_readme.py compares the pages with the file, and measures some anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import tables  # noqa: E402

from npuc import compile as compile_model  # noqa: E402
from npuc.models import MODELS  # noqa: E402
from npuc.reports import charts  # noqa: E402
from npuc.target import target as target_named  # noqa: E402

FILE = ROOT / "docs" / "figures.json"
TINY = "tiny_resnet8_fp32.onnx"
"""MLPerf Tiny's ResNet-8, in the folder `shared` beside the project."""
PAGES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, str, dict[str, Any]]]]] = {
    "nvdla.md": (
        ("cycles", "traffic_bytes"),
        {
            "small, direct": (TINY, "nvdla-small", {"weights": "direct"}),
            "small, auto": (TINY, "nvdla-small", {}),
            "full, direct": (TINY, "nvdla-full", {"weights": "direct"}),
            "full, auto": (TINY, "nvdla-full", {}),
            "full, winograd": (TINY, "nvdla-full", {"allow": "winograd"}),
        },
    ),
    "bm1684.md": (
        ("cycles", "busier_engine_cycles", "network_bound_cycles"),
        {
            "small_cnn": ("small_cnn", "bm1684", {}),
            "mobilenet_v2": ("mobilenet_v2", "bm1684", {}),
            "four images": ("mobilenet_v2", "bm1684", {"input_shapes": {"input": (4, 3, 224, 224)}}),
        },
    ),
    "bm1684-int8.md": (
        ("cycles",),
        {
            "resnet8": ("resnet8", "bm1684", {"precision": "int8"}),
            "mobilenet_v2": ("mobilenet_v2", "bm1684", {"precision": "int8"}),
        },
    ),
}
"""For each page the figures of a report that a line of it states together, and of which compilations."""


def stated(page: str, name: str) -> dict[str, int]:
    """The figures of a page for one of its compilations, with synthetic samples."""
    keys, compilations = PAGES[page]
    model, target, options = compilations[name]
    source = tables.TRAINED / model if model == TINY else MODELS[model]()
    report = compile_model(source, target=target, calibration="synthetic", proof="off", **options).report
    return {key: report[key] for key in keys}


TABLES: Mapping[str, tuple[str, Callable[[], Iterable[Sequence[str]]]]] = {
    "cycles": ("README.md", tables.cycles),
    "builders": ("docs/models.md", tables.builders),
    "families": ("docs/models.md", tables.families),
    "quantised": ("docs/quantisation.md", tables.quantised_rows),
    "accuracies": ("docs/quantisation.md", tables.accuracies),
    "large": ("docs/benchmarks.md", tables.large),
    "easynpu": ("docs/benchmarks.md", tables.easynpu),
}
"""For each table its page, and what measures its rows, the header first."""


def written(name: str, rows: Sequence[Sequence[str]]) -> str:
    """A table as its page has it."""
    lines = [rows[0], ["--"] * len(rows[0]), *rows[1:]]
    return f"<!-- {name}: docs/figures.py -->\n" + "".join(f"| {' | '.join(each)} |\n" for each in lines)


def trace() -> str:
    """When each engine of BM1684 is busy with the ResNet-8 of the README's table, as an SVG."""
    program = compile_model(MODELS["resnet8"](), target="bm1684")
    layers = [each["name"] for each in program.report["layers"]]
    drawn = charts.engines(target_named("bm1684").timeline(program.program), layers)
    style = (ROOT / "npuc" / "reports" / "html" / "style.css").read_text(encoding="utf-8")
    style = style[: style.index("* {")] + "\n".join(re.findall(r"^svg .*$", style, re.MULTILINE))
    return drawn.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).replace(
        ">", f"><style>{style}</style>", 1
    )


def main(names: Sequence[str]) -> None:
    """Measures, and writes the file and the pages."""
    known = json.loads(FILE.read_text(encoding="utf-8"))
    for name in names or TABLES:
        page, measure = TABLES[name]
        known["tables"][name] = [[*row] for row in measure()]
        text = (ROOT / page).read_text(encoding="utf-8")
        (old,) = re.findall(rf"<!-- {name}: docs/figures.py -->\n(?:\|.*\n)*", text)
        (ROOT / page).write_text(text.replace(old, written(name, known["tables"][name])), encoding="utf-8")
    if not names:
        known["pages"] = {page: {name: stated(page, name) for name in rows} for page, (_, rows) in PAGES.items()}
        (ROOT / "docs" / "trace.svg").write_text(trace() + "\n", encoding="utf-8")
    FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
