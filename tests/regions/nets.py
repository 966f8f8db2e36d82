"""Small networks with nodes that no target knows, and programs of them checked against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from npuc import running
from npuc.account import FOLDED, REMOVED, account_of, groups, reasons
from npuc.driver import compile_model
from npuc.program import Program, load, save
from npuc.regions.composite import target_of
from npuc.samples.loading import Samples, synthetic
from npuc.target import FLOATING, Options, Request, target
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance


def weights(**shapes: Sequence[int]) -> list[onnx.TensorProto]:
    """Weights of unit gain and a mean that is not 0, by name."""
    random = np.random.default_rng(3)
    found: list[onnx.TensorProto] = []
    for name, shape in shapes.items():
        fan_in = max(int(np.prod(shape[1:])), 1)
        values = (random.standard_normal(shape) / np.sqrt(fan_in) + 0.1 / fan_in).astype(np.float32)
        found.append(numpy_helper.from_array(values, name))
    return found


def model_of(text: str, **shapes: Sequence[int]) -> onnx.ModelProto:
    """A model in ONNX's textual form; shapes: of its weights."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(weights(**shapes))
    return model


def program_of(
    model: onnx.ModelProto,
    folder: Path,
    name: str = "easynpu",
    options: Mapping[str, Any] | None = None,
    calibration: Sequence[Path] = (),
) -> Program:
    """The program as it is read back from its artefact in folder/out.npu; the model is folder/m.onnx."""
    onnx.save(model, folder / "m.onnx")
    machine = target(name)
    asked = Options(precision=machine.precisions[0], level="0", **(options or {}))
    program, _ = compile_model(Request(folder / "m.onnx", machine, asked, calibration))
    save(program, folder / "out.npu")
    return load(folder / "out.npu")


def checked(program: Program, folder: Path, samples: Samples | None = None) -> dict[str, Any]:
    """The verification of such a program on other samples than those of its calibration."""
    samples = samples or synthetic(running.program_inputs(program), 3, seed=5)
    limits = Tolerance(60.0, 0.9999) if program.precision in FLOATING else Tolerance(12.0, 0.95)
    return verify(folder / "m.onnx", folder / "out.npu", program, target_of(program), samples, limits)


def places(program: Program) -> list[tuple[str, tuple[str, ...]]]:
    """Where what runs: place and operators, in order."""
    entries = [each for each in account_of(program.manifest) if each.place not in (FOLDED, REMOVED)]
    told = program.manifest["report"]["partitions"]
    paths = [(each["place"], each["path"]) for each in told]
    return [
        (place, tuple(each.op for each in entries if path is None or path in each.paths)) for place, path in paths
    ]


def causes(program: Program) -> list[str]:
    """The codes for which nodes are on the host, in the model's order."""
    return [each["code"] for each in groups(reasons(account_of(program.manifest)))]
