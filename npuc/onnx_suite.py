"""ONNX's backend test suite, for any target: what a target refuses is skipped with its reason.

from npuc.onnx_suite import suite
globals().update(suite("bm1684", __name__).test_cases)
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.test import BackendTest

from npuc.api import Compiled
from npuc.errors import NpucError
from npuc.ir import Array
from npuc.onnx_backend import NpucBackend, Prepared
from npuc.program import Program
from npuc.target import FLOATING, Options
from npuc.target import target as find

MOST_STEPS = 3.0
"""How far an int8 target may be off, in quantisation steps of the output."""
MOVES = ("Reshape", "Transpose", "Concat", "Slice", "Split", "DepthToSpace", "SpaceToDepth", "Identity")


SELECTIONS = ("Max", "Min", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin")
"""Operators whose result is one of their operands, however small its own steps are."""


def output_step(program: Program, output: str) -> float | None:
    """The quantisation step of an output: the largest scale of the int8 tensors that movement alone makes it of.

    None where the host computes it in float32.
    """
    traced, scales = {output}, list[float]()
    for entry in reversed(program.manifest["steps"]):
        if entry["kind"] == "host" and traced.intersection(entry["outputs"]):
            if entry["op"] == "DequantizeLinear":
                scales.append(entry["attrs"]["scale"])
            elif entry["op"] in MOVES:
                traced.update(entry["inputs"])
    return max(scales, default=None)


def tolerance(program: Program, model: onnx.ModelProto, output: str, wanted: Array) -> float:
    """What an int8 program's output may be off at most; 0 if it has no instruction, or computes in floats.

    3 steps; where the host computes the output in float32 from int8 values, a step is 1/127 of the largest
    magnitude. Selections may be off by half a step of the input as well. Outputs of 8 bits count in steps of their
    own: one.
    """
    steps = program.manifest["steps"]
    if program.precision in FLOATING or all(entry["kind"] != "segment" for entry in steps):
        return 0.0
    if wanted.dtype.kind != "f":
        return 1.0 if wanted.dtype.itemsize == 1 and wanted.dtype.kind in "iu" else 0.0
    step = output_step(program, output)
    if step is None:
        step = float(np.abs(wanted.astype(np.float64)).max(initial=0, where=np.isfinite(wanted))) / 127
    selects = all(node.op_type in SELECTIONS for node in model.graph.node)
    inputs = [entry["attrs"]["scale"] for entry in steps if selects and entry.get("op") == "QuantizeLinear"]
    return MOST_STEPS * step + max(inputs, default=0.0) / 2


def suite(target: str, parent_module: str | None = None, options: Options | None = None) -> BackendTest:
    """The suite, to be run by unittest or pytest. Floating-point targets must reach its own tolerances."""
    last: list[tuple[Compiled, onnx.ModelProto]] = []
    usual = options or Options(precision=find(target).precisions[0])

    class Remembering(Prepared):
        """Keeps the program of the last run; what npuc refuses is no failure."""

        def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
            last.clear()
            try:
                last.append((self.compiled(self.feeds(inputs)), self.model))
                return super().run(inputs, **kwargs)
            except NpucError as error:
                raise unittest.SkipTest(str(error)) from None

    class Tested(NpucBackend):
        """The backend of the target."""

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
            """The model, ready to run."""
            NpucBackend.prepare(model, device, **kwargs)
            return Remembering(model, target, usual, None)

    class InSteps(BackendTest):
        """Allows an int8 target its quantisation."""

        @classmethod
        def assert_similar_outputs(
            cls,
            ref_outputs: Sequence[Any],
            outputs: Sequence[Any],
            rtol: float,
            atol: float,
            model_dir: str | None = None,
        ) -> None:
            """Compares output by output."""
            compiled, model = last[0]
            program = compiled.program
            for port, wanted, found in zip(program.outputs, ref_outputs, outputs, strict=True):
                room = max(atol, tolerance(program, model, port.name, np.asarray(wanted)))
                super().assert_similar_outputs([wanted], [found], rtol, room, model_dir)

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # onnx makes its cases now, with overflows and divisions by zero among them
        return InSteps(Tested, parent_module)
