"""The tables of the pages, as rows of text, the header first; docs/figures.py writes them.

Each function names the script that prints more of the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import public_networks

from npuc import api
from npuc.ir import Array
from npuc.models import MODELS, PUBLIC
from npuc.reference import session

Rows = Iterator[Sequence[str]]
SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"
"""Trained models beside the project."""
NAMES = {
    "digits": "digits, a trained CNN of 5 layers",
    "resnet8": "ResNet-8, 32 x 32",
    "ds_cnn": "DS-CNN, keywords",
    "mobilenet_v1_025": "MobileNetV1-0.25, 96 x 96",
}
"""The models of the README. All but digits have random weights, and samples of noise."""


def cycles(names: Sequence[str] = tuple(NAMES)) -> Rows:
    """For each target the cycles of a sample, with the share of MACs on the NPU if not all are; right answers.

    Right answers are those of digits, also in fp32 under onnxruntime. compile proves every program.
    """
    yield "cycles of an inference", *public_networks.TARGETS
    rng, folder = np.random.default_rng(0), Path(__file__).resolve().parents[1] / "models"
    for name in names:
        model = MODELS[name]()
        shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
        noise = rng.normal(size=(16, *shape[1:])).astype(np.float32)
        samples = folder / "digits_calibration.npz" if name == "digits" else noise
        programs = [_compiled(model, each, samples) for each in public_networks.TARGETS]
        yield NAMES[name], *(_cycles(each.report) for each in programs)
        if name == "digits":
            with np.load(folder / "digits_test.npz") as file:
                images, labels = file["x"].astype(np.float32), file["y"]
            run = session(model.SerializeToString())
            exact = np.concatenate([np.asarray(run.run(None, {"input": each[None]})[0]) for each in images])
            told = [_right(next(iter(each.run(images).values())), labels) for each in programs]
            yield f"digits, right answers (fp32 {_right(exact, labels)})", *told


def _cycles(report: Mapping[str, Any]) -> str:
    share = report["npu_macs_share"]
    return f"{report['cycles']:,}" + ("" if share == 1 else f" ({100 * share:.1f} %)")


def _right(outputs: Array, labels: Any) -> str:
    return f"{100 * (outputs.argmax(axis=1) == labels).mean():.1f} %"


def _compiled(model: onnx.ModelProto, title: str, samples: Any) -> api.Compiled:
    target, _, precision = title.partition(" ")
    return api.compile(model, target, calibration=samples, **({"precision": precision} if precision else {}))


def builders() -> Rows:
    """npuc.models.MODELS: extents, parameters, and what the module says of itself."""
    yield "name", "input", "output", "parameters", "network"
    for name, build in MODELS.items():
        graph = build().graph
        shapes = (port.type.tensor_type.shape.dim for port in (graph.input[0], graph.output[0]))
        ends = ("x".join(str(each.dim_value) for each in shape) for shape in shapes)
        parameters = sum(prod(each.dims) for each in graph.initializer)
        told = str(import_module(f"npuc.models.{name}").__doc__).splitlines()[0]
        yield f"`{name}`", *ends, f"{parameters:,}", told.rstrip(".")


def families(names: Sequence[str] = tuple(PUBLIC)) -> Rows:
    """benchmarks/public_networks.py."""
    yield "network", *public_networks.TARGETS, "rounded", "refused"
    for name in names:
        model = PUBLIC[name]()
        yield public_networks.cells(
            name, model, [public_networks.row(name, model, each) for each in public_networks.TARGETS]
        )
