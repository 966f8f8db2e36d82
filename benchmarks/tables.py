"""The tables of the pages, as rows of text, the header first; docs/figures.py writes them.

Each function names the script that prints more of the same. CPU seconds and memory are of the measuring machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import accuracy
import large_networks
import numpy as np
import onnx
import public_networks
import quantised_models
from networks import SHARED

from npuc import api
from npuc.models import MODELS, PUBLIC

Rows = Iterator[Sequence[str]]
TRAINED = SHARED / "models"
"""Trained models beside the project."""
NAMES = {
    "digits": "digits, a trained CNN of 5 layers",
    "resnet8": "ResNet-8, 32 x 32",
    "ds_cnn": "DS-CNN, keywords",
    "mobilenet_v1_025": "MobileNetV1-0.25, 96 x 96",
}
"""The models of the README. All but digits have random weights, and samples of noise."""
MACHINES = ("large", "default", "document", "author")
EASYNPU = (
    *("tiny_resnet8_fp32", "tiny_kws_dscnn_fp32", "tiny_vww_mbv1_fp32", "tiny_ad_ae_fp32"),
    *("mnist_cnn", "mtcnn_pnet", "ppocr_cls", "pplcnet_doc_ori"),
)
TARGETS = ("easynpu", "nvdla-small", "nvdla-full", "bm1684")


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
        programs = [_compile(model, each, samples) for each in public_networks.TARGETS]
        yield NAMES[name], *(_cycles(each.report) for each in programs)
        if name == "digits":
            judged = [api.accuracy(model, each, folder / "digits_test.npz") for each in programs]
            answers = [judged[0]["fp32"], *(each["simulator"] for each in judged)]
            exact, *told = (f"{100 * each['top1']:.1f} %" for each in answers)
            yield f"digits, right answers (fp32 {exact})", *told


def _cycles(report: Mapping[str, Any]) -> str:
    share = report["npu_macs_share"]
    return f"{report['cycles']:,}" + ("" if share == 1 else f" ({100 * share:.1f} %)")


def _compile(model: onnx.ModelProto, title: str, samples: Any) -> api.Compiled:
    target, _, precision = title.partition(" ")
    return api.compile(model, target, calibration=samples, **({"precision": precision} if precision else {}))


def builders() -> Rows:
    """npuc.models.MODELS: extents, parameters, and what the builder says of itself."""
    yield "name", "input", "output", "parameters", "network"
    for name, build in MODELS.items():
        graph = build().graph
        shapes = (port.type.tensor_type.shape.dim for port in (graph.input[0], graph.output[0]))
        ends = ("x".join(str(each.dim_value) for each in shape) for shape in shapes)
        parameters = sum(prod(each.dims) for each in graph.initializer)
        told = str(getattr(import_module(build.__module__), name).__doc__).splitlines()[0]
        yield f"`{name}`", *ends, f"{parameters:,}", told.rstrip(".")


def families(names: Sequence[str] = tuple(PUBLIC)) -> Rows:
    """benchmarks/public_networks.py."""
    yield "network", *public_networks.TARGETS, "rounded", "refused"
    for name in names:
        model = PUBLIC[name]()
        yield public_networks.cells(
            name, model, [public_networks.row(name, model, each) for each in public_networks.TARGETS]
        )


def quantised_rows() -> Rows:
    """benchmarks/quantised_models.py."""
    yield "model", "inputs", "float network", "no data", "with samples"
    for name in ("tiny_kws_int8qdq", "tiny_vww_int8qdq", "tiny_sww_int8", "tiny_resnet8_int8qdq"):
        for row in quantised_models.rows(TRAINED / f"{name}.onnx", "1", 200):
            yield row.model, row.inputs, *(f"{each:.1f}" for each in (row.float, row.no_data, row.samples))


def accuracies() -> Rows:
    """benchmarks/accuracy.py."""
    yield "network", "onnxruntime", *TARGETS
    with TemporaryDirectory() as folder:
        for task in accuracy.tasks(Path(folder), 0):
            found = {row.computation: row for row in accuracy.rows(*task, "1", accuracy.USUAL, TARGETS)}
            wanted = (accuracy.YARDSTICK, *TARGETS)
            yield task[0], *(_decibels(found[each]) if each in found else "-" for each in wanted)


def _decibels(row: accuracy.Row) -> str:
    return ", ".join("exact" if each is None else f"{each:.1f}" for each in row.sqnr_db)


def large() -> Rows:
    """benchmarks/large_networks.py."""
    yield "network", "target", "compile, CPU s", "MB", "cycles", "verify, CPU s", "MB"
    for row in large_networks.rows(
        ("SqueezeNet", "GoogLeNet", "ResNet-50"), ("nvdla-small", "nvdla-full"), "int8"
    ):
        costs = f"{row.compile_seconds:.1f}", f"{row.compile_mb:.0f}", f"{row.cycles:,}"
        yield row.network, row.target, *costs, f"{row.verify_seconds:.1f}", f"{row.verify_mb:.0f}"


def easynpu(names: Sequence[str] = EASYNPU) -> Rows:
    """Utilisation on every machine, and the host's traffic on the default one over the least of any program."""
    yield "network", *MACHINES, "traffic"
    for name in names:
        reports = {each: _easynpu(TRAINED / f"{name}.onnx", each) for each in MACHINES}
        traffic = reports["default"]["host_traffic"]
        moved = (traffic["map_bytes"] + traffic["weight_bytes"]) / traffic["least_bytes"]
        yield name, *(f"{each['utilization']:.3f}" for each in reports.values()), f"{moved:.2f}"


def _easynpu(model: Path, machine: str) -> Any:
    return api.compile(model, "easynpu", machine=machine, calibration="synthetic", proof="off").report
