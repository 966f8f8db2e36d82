"""ONNX's backend test suite, for any target: what a target refuses is skipped with its reason.

from npuc.onnx_suite import suite
globals().update(suite("bm1684", __name__).test_cases)
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest

from npuc.errors import NpucError
from npuc.ir import Array
from npuc.onnx_backend import NpucBackend, Prepared
from npuc.program import DTYPES, Program
from npuc.reference import session
from npuc.regions.artefact import is_composite
from npuc.regions.composite import parts
from npuc.registry import target as find
from npuc.samples.structured import comparable, leaves
from npuc.target import FLOATING, usual_options

MOST_STEPS = 3.0
"""The largest error of an int8 target, in quantisation steps of the output."""
MOVES = ("Reshape", "Transpose", "Concat", "Slice", "Split", "DepthToSpace", "SpaceToDepth", "Identity")


SELECTIONS = ("Max", "Min", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin")
"""Operators that select one of their operands: half an input step may exceed the output's step."""


def steps_of(program: Program) -> list[Mapping[str, Any]]:
    """The steps of a program, or of its NPU parts one after the other."""
    return [step for part in parts(program) for step in part.manifest["steps"]]


def output_step(program: Program, output: str) -> float | None:
    """The quantisation step of an output: the largest scale of the int8 tensors that it is moved from.

    None if the host computes it in float32.
    """
    traced, scales = {output}, list[float]()
    for entry in reversed(steps_of(program)):
        if entry["kind"] == "host" and traced.intersection(entry["outputs"]):
            if entry["op"] == "DequantizeLinear":
                scales.append(entry["attrs"]["scale"])
            elif entry["op"] in MOVES:
                traced.update(entry["inputs"])
    return max(scales, default=None)


def tolerance(program: Program, model: onnx.ModelProto, output: str, wanted: Array) -> float:
    """The largest permitted error of an int8 program's output; 0 without instructions or in floating point.

    The tolerance is 3 steps; if the host computes the output in float32 from int8 values, a step is 1/127 of the
    largest magnitude. Selections may also be off by half a step of the input. 8-bit outputs may be off by one.
    """
    steps = steps_of(program)
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


RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def place_of(program: Program) -> str:
    """Where a program runs: "npu" on the target alone, "mixed" with host regions, "host" entirely."""
    if not is_composite(program):
        return "npu"
    return "mixed" if parts(program) else "host"


class _LastRun:
    """The last run: model, inputs, and the program, if any."""

    def __init__(self, model: onnx.ModelProto, inputs: Any) -> None:
        self.model, self.inputs = model, inputs
        self.program: Program | None = None
        self.judged = False
        """Whether the outputs were already compared: those of a sequence are compared one by one."""

    @property
    def is_random(self) -> bool:
        """Whether its values change from run to run."""
        training = any(
            node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] for node in self.model.graph.node
        )
        return training or any(node.op_type in RANDOM for node in self.model.graph.node)

    def by_onnxruntime(self) -> list[Any]:
        """onnxruntime's outputs for the same inputs. Raises ModelError if it refuses the model."""
        found = session(self.model)
        names = [each.name for each in found.get_inputs()]
        outputs: list[Any] = found.run(None, dict(zip(names, self.inputs, strict=True)))
        return outputs


class Suite(BackendTest):
    """ONNX's tests for a backend that may refuse a model."""

    runs: ClassVar[list[_LastRun]]
    """The last run, if any."""

    @classmethod
    def place(cls) -> str | None:
        """Where the last test ran; None if npuc did not run it."""
        program = cls.runs[0].program if cls.runs else None
        return None if program is None else place_of(program)

    @classmethod
    def assert_similar_outputs(
        cls,
        ref_outputs: Sequence[Any],
        outputs: Sequence[Any],
        rtol: float,
        atol: float,
        model_dir: str | None = None,
    ) -> None:
        """Compares output by output; an int8 target is allowed its quantisation error.

        Random outputs, types that numpy lacks, and cases in which onnxruntime deviates from the test like npuc are
        skipped.
        """
        run = cls.runs[0]
        if run.program is None or run.judged:
            super().assert_similar_outputs(ref_outputs, outputs, rtol, atol, model_dir)
            return
        run.judged = True
        try:
            for port, wanted, found in zip(run.program.outputs, ref_outputs, outputs, strict=True):
                tolerance = max(atol, _tolerance(run, port.name, wanted))
                super().assert_similar_outputs([wanted], [found], rtol, tolerance, model_dir)
        except (AssertionError, TypeError, ValueError):
            if run.is_random:
                raise unittest.SkipTest("its values are random") from None
            strange = [each for each in ref_outputs if _is_strange(each)]
            if strange:
                raise unittest.SkipTest(f"onnxruntime gives no arrays of {strange[0].dtype}") from None
            if place_of(run.program) == "host" and _is_same(run.by_onnxruntime(), outputs):
                raise unittest.SkipTest("onnxruntime computes other values than the test expects") from None
            raise
        finally:
            run.judged = False


def _tolerance(run: _LastRun, output: str, wanted: Any) -> float:
    if run.program is None or not isinstance(wanted, np.ndarray | np.generic):
        return 0.0
    values = np.asarray(wanted)
    return tolerance(run.program, run.model, output, values) if values.dtype.kind in "fiub" else 0.0


def _is_strange(value: Any) -> bool:
    """Whether it is an array of a number type that numpy lacks: bfloat16, float8, int4."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind != "O"
        and str(value.dtype) not in (*DTYPES, "complex64")
    )


def _is_same(wanted: Sequence[Any], found: Sequence[Any]) -> bool:
    """Whether two runs gave the same values."""
    return comparable(list(wanted), list(found)) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
        for a, b in zip(leaves(list(wanted)), leaves(list(found)), strict=True)
    )


def suite(target: str, parent_module: str | None = None) -> Suite:
    """The suite, to be run by unittest or pytest. Floating-point targets must reach its own tolerances."""
    usual = usual_options(find(target))

    class Remembering(Prepared):
        """Keeps the program of the last run; models that npuc refuses are skipped."""

        def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
            Tests.runs[:] = [_LastRun(self.model, inputs)]
            try:
                Tests.runs[0].program = self.compile_for(self.feeds(inputs)).program
                return super().run(inputs, **kwargs)
            except NpucError as error:
                raise unittest.SkipTest(str(error)) from None

    return _suite(lambda model: Remembering(model, target, usual, None), parent_module)


def runtime_suite(parent_module: str | None = None) -> Suite:
    """The suite for onnxruntime itself: models that it does not run are skipped."""

    class SuiteSession(BackendRep):
        """A model under onnxruntime."""

        def __init__(self, model: onnx.ModelProto) -> None:
            self.model = model

        def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
            del kwargs
            Tests.runs[:] = [_LastRun(self.model, inputs)]
            try:
                return tuple(Tests.runs[0].by_onnxruntime())
            except Exception as error:  # onnxruntime raises many unrelated types
                raise unittest.SkipTest(str(error)) from None

    return _suite(SuiteSession, parent_module)


class Tests(Suite):
    """The suite in which the last run is kept."""

    runs: ClassVar[list[_LastRun]] = []


def _suite(prepare: Callable[[onnx.ModelProto], BackendRep], parent_module: str | None) -> Suite:
    class Tested(NpucBackend):
        """The backend."""

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
            """The model, ready to run."""
            Backend.prepare(model, device, **kwargs)
            return prepare(model)

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # onnx creates its cases here, with overflows and divisions by zero among them
        return Tests(Tested, parent_module)
