"""Whole compiles of drawn graphs: the program runs on the chip model as its references say, or is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npuc import driver
from npuc.errors import NpucError
from npuc.export_onnx import to_onnx
from npuc.ir import Array, Graph
from npuc.program import as_loaded
from npuc.storage import data
from npuc.storage.data import Samples
from npuc.target import FLOATING, Options, target
from npuc.verification.metrics import Tolerance
from tests.graphs.checking import Finding, onnxruntime_values

REFUSALS = ("E2", "E3")
"""Codes of operators that a target has not, and of what does not fit: both name a node and a remedy."""
LEAST_DB = {"int8": 3.0, "int16": 30.0, "fp16": 30.0, "fp32": 70.0}
"""Signal to noise of an output against onnxruntime below which more than rounding is wrong."""
NEGLIGIBLE = {"int8": 2e-2, "int16": 1e-4, "fp16": 1e-3, "fp32": 1e-6}
"""Errors, of the largest input, that are rounding whatever the size of the output, where sums cancel."""
NO_ORACLE = "onnxruntime refuses"


@dataclass(frozen=True)
class Case:
    """What graphs are compiled for."""

    target: str
    precision: str
    level: str = "0"
    weights: str | None = None
    """The form of weights that is asked for."""
    machine: str | None = None
    """A file that describes the machine."""

    def __str__(self) -> str:
        return f"{self.target}/{self.precision}"

    @property
    def options(self) -> Options:
        """The options of the compilation."""
        return Options(self.machine, self.precision, level=self.level, weights=self.weights)


CASES = tuple(
    Case(*each)
    for each in (
        ("easynpu", "int8"),
        ("nvdla-small", "int8"),
        ("nvdla-full", "int8"),
        ("nvdla-full", "int16"),
        ("nvdla-full", "fp16"),
        ("bm1684", "fp32"),
    )
)


def check_compile(graph: Graph, feeds: Sequence[Mapping[str, Array]], case: Case, folder: Path) -> Finding | str:
    """A finding; or "ok", or the code of a refusal.

    feeds: the samples that the network is calibrated on and run with. folder: where the model is written.
    """
    try:
        onnxruntime_values(graph, feeds[:1])
    except (
        Exception
    ):  # onnxruntime raises many unrelated types; what it has no form of nothing can be compared with
        return NO_ORACLE
    stacked = {name: np.stack([feed[name] for feed in feeds]) for name in graph.inputs}
    try:
        model, compiled = compiled_program(graph, stacked, case, folder)
    except NpucError as error:
        return _refusal(error, case)
    except Exception as error:
        return _traceback(error, case, "compiling")
    try:
        report = _verified(model, compiled, case, stacked)
    except NpucError as error:
        return Finding(str(case), f"compiled, then {error.problems[0].code}", str(error).splitlines()[0])
    except Exception as error:
        return _traceback(error, case, "verifying")
    return _judged(report, case, max(float(np.abs(each).max(initial=1.0)) for each in stacked.values()))


def verified(graph: Graph, case: Case, folder: Path, samples: int = 6) -> Mapping[str, Any]:
    """The verification report of a graph that must compile, with feeds whose mean is not zero.

    Raises NpucError where the graph is refused.
    """
    feeds = samples_of(graph, samples)
    return _verified(*compiled_program(graph, feeds, case, folder), case, feeds)


def samples_of(graph: Graph, count: int = 6) -> dict[str, Array]:
    """Samples whose mean is not zero, one behind another."""
    random = np.random.default_rng(0)
    shapes = {name: (count, *graph.shape(name)) for name in graph.inputs}
    return {name: (random.standard_normal(shape) + 0.3).astype(np.float32) for name, shape in shapes.items()}


def compiled_program(
    graph: Graph, stacked: Mapping[str, Array], case: Case, folder: Path
) -> tuple[Path, driver.Program]:
    """The model's file, and its program with scales of these samples."""
    model, calibration = folder / "model.onnx", folder / "samples.npz"
    model.write_bytes(to_onnx(graph).SerializeToString())
    data.save(calibration, stacked)
    return model, driver.compile_model(model, target(case.target), case.options, {}, [calibration])[0]


def _refusal(error: NpucError, case: Case) -> Finding | str:
    codes = [each.code for each in error.problems]
    if all(code.startswith(REFUSALS) for code in codes):
        return codes[0]
    return Finding(str(case), f"refused with {codes[0]}", str(error).splitlines()[0])


def _traceback(error: Exception, case: Case, when: str) -> Finding:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    at = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place is not None else ""
    return Finding(str(case), f"{type(error).__name__} {when} in {at}", str(error)[:200])


def _verified(
    model: Path, compiled: driver.Program, case: Case, stacked: Mapping[str, Array]
) -> Mapping[str, Any]:
    loaded = as_loaded(compiled)
    tolerance = Tolerance(sqnr_db=-1000, cosine=-2)
    if case.precision in FLOATING:
        from npuc.verification.floating import FloatCheck as Check
    else:
        from npuc.verification.integer import IntegerCheck as Check
    check = Check(model, loaded.evidence, loaded, target(case.target), "own")
    check.batch(Samples(stacked))
    report = check.report(tolerance)
    if not report["bit_exact"] and _is_oracle_at_fault(check, report):
        report["bit_exact"] = True
    return report


def _is_oracle_at_fault(check: object, report: Mapping[str, Any]) -> bool:
    """Whether what strayed from the integer network are outputs of the host that are those of the model.

    onnxruntime rounds a graph output that a Transpose and a QuantizeLinear read, whatever its options.
    """
    bits = getattr(check, "bits", None)
    if bits is None or any(True for _ in bits.faults()):
        return False
    errors = {each["name"]: each["max_abs_error"] for each in report["outputs"]}
    return all(errors.get(name) == 0 for name in bits.strayed)


def _judged(report: Mapping[str, Any], case: Case, largest: float) -> Finding | str:
    if report["bit_exact"] is False:
        named = next((layer for layer in report["layers"] if layer["bit_exact"] is False), None)
        detail = "" if named is None else f"{named['name']} in {named['differing_elements']} elements"
        return Finding(str(case), "not bit exact", detail)
    for each in report["outputs"]:
        sqnr = each["sqnr_db"]
        wrong = each["max_abs_error"] > NEGLIGIBLE[case.precision] * largest
        if sqnr is not None and sqnr < LEAST_DB[case.precision] and wrong:
            return Finding(
                str(case),
                "far from onnxruntime",
                f"{each['name']} {sqnr:.1f} dB, error {each['max_abs_error']:.3g}",
            )
    return "ok"
