"""Measures what README and pages say of cycles, and writes docs/figures.json and the README's first table.

tests/test_readme.py measures some of it anew, and looks for all of it in the pages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from npuc import compile as compile_model
from npuc.ir import Array
from npuc.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "figures.json"
MARK = "<!-- written by docs/figures.py -->\n"
TARGETS: dict[str, dict[str, Any]] = {
    "easynpu": {},
    "nvdla-small": {},
    "nvdla-full": {},
    "bm1684": {},
    "bm1684 int8": {"precision": "int8"},
}
NAMES = {
    "digits": "digits, a trained CNN of 5 layers",
    "resnet8": "ResNet-8, 32 x 32",
    "ds_cnn": "DS-CNN, keywords",
    "mobilenet_v1_025": "MobileNetV1-0.25, 96 x 96",
}
"""The models in the table. All but digits have random weights, and samples of noise."""
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

Figures = dict[str, dict[str, dict[str, float | int | None]]]


def measure(name: str) -> dict[str, dict[str, float | int | None]]:
    """For each target the share of MACs on the NPU, the cycles of a sample, and for digits the right answers.

    Of digits also those of fp32 under onnxruntime. compile proves every program.
    """
    model = MODELS[name]()
    folder = ROOT / "models"
    rng = np.random.default_rng(0)
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    samples: Any = rng.normal(size=(16, *shape[1:])).astype(np.float32)
    images = labels = None
    if name == "digits":
        samples = folder / "digits_calibration.npz"
        with np.load(folder / "digits_test.npz") as file:
            images, labels = file["x"].astype(np.float32), file["y"]
    found: dict[str, dict[str, float | int | None]] = {}
    if images is not None:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        exact = np.concatenate([np.asarray(session.run(None, {"input": each[None]})[0]) for each in images])
        found["fp32"] = {"right": _right(exact, labels)}
    for title, options in TARGETS.items():
        program = compile_model(model, target=title.split()[0], calibration=samples, **options)
        report = program.report
        right = None if images is None else _right(next(iter(program.run(images).values())), labels)
        found[title] = {"share": report["npu_macs_share"], "cycles": report["cycles"], "right": right}
    return found


def stated(page: str, name: str) -> dict[str, int]:
    """The figures of a page for one of its compilations, with synthetic samples."""
    keys, compilations = PAGES[page]
    model, target, options = compilations[name]
    source = ROOT.parent / "shared" / "models" / model if model == TINY else MODELS[model]()
    report = compile_model(source, target=target, calibration="synthetic", proof="off", **options).report
    return {key: report[key] for key in keys}


def _right(outputs: Array, labels: Any) -> float:
    return float((outputs.argmax(axis=1) == labels).mean())


def table(figures: Figures) -> str:
    """The README's table: per model and machine the cycles, and the share of MACs on the NPU if not all are."""
    rows = [f"| cycles of an inference | {' | '.join(TARGETS)} |", f"|--|{'--|' * len(TARGETS)}"]
    for name, title in NAMES.items():
        cells = [figures[name][each] for each in TARGETS]
        texts = [
            f"{each['cycles']:,}" + ("" if each["share"] == 1 else f" ({each['share']:.1%})") for each in cells
        ]
        rows.append(f"| {title} | {' | '.join(texts)} |")
    right = " | ".join(f"{figures['digits'][each]['right']:.1%}" for each in TARGETS)
    rows.append(f"| digits, right answers (fp32 {figures['digits']['fp32']['right']:.1%}) | {right} |")
    return "\n".join(rows).replace("%", " %") + "\n"


if __name__ == "__main__":
    found = {name: measure(name) for name in NAMES}
    pages = {page: {name: stated(page, name) for name in rows} for page, (_, rows) in PAGES.items()}
    FILE.write_text(json.dumps({**found, "pages": pages}, indent=1) + "\n", encoding="utf-8")
    page = ROOT / "README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(MARK)
    page.write_text(before + MARK + table(found) + rest[rest.index("\n\n") + 1 :], encoding="utf-8")
