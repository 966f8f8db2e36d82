"""Whole compiles of drawn graphs: the program runs on the chip model as its references say, or is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from tests.graphs.checking import Finding

REFUSALS = ("E2", "E3")
"""Codes of operators that a target has not, and of what does not fit: both name a node and a remedy."""
LEAST_DB = {"int8": 3.0, "int16": 30.0, "fp16": 30.0, "fp32": 70.0}
"""Signal to noise of an output against onnxruntime below which more than rounding is wrong."""
NEGLIGIBLE = 1e-3
"""Errors of this size, of the largest value in the network, are rounding whatever the output's own size."""


@dataclass(frozen=True)
class Case:
    """What graphs are compiled for."""

    target: str
    precision: str
    level: str = "0"

    def __str__(self) -> str:
        return f"{self.target}/{self.precision}"

    @property
    def options(self) -> Options:
        """The options of the compilation."""
        return Options(precision=self.precision, level=self.level)


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
    model = folder / "model.onnx"
    model.write_bytes(to_onnx(graph).SerializeToString())
    stacked = {name: np.stack([feed[name] for feed in feeds]) for name in graph.inputs}
    calibration = folder / "samples.npz"
    data.save(calibration, stacked)
    try:
        compiled, _ = driver.compile_model(model, target(case.target), case.options, {}, [calibration])
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
    return _judged(report, case)


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
) -> Mapping[str, object]:
    loaded = as_loaded(compiled)
    tolerance = Tolerance(sqnr_db=-1000, cosine=-2)
    if case.precision in FLOATING:
        from npuc.verification.floating import FloatCheck as Check
    else:
        from npuc.verification.integer import IntegerCheck as Check
    check = Check(model, loaded.evidence, loaded, target(case.target), "own")
    check.batch(Samples(stacked))
    return check.report(tolerance)


def _judged(report: Mapping[str, object], case: Case) -> Finding | str:
    layers = report["layers"]
    assert isinstance(layers, list)
    if report["bit_exact"] is False:
        named = next((layer for layer in layers if layer["bit_exact"] is False), None)
        detail = "" if named is None else f"{named['name']} in {named['differing_elements']} elements"
        return Finding(str(case), "not bit exact", detail)
    outputs = report["outputs"]
    assert isinstance(outputs, list)
    for each in outputs:
        sqnr = each["sqnr_db"]
        if sqnr is not None and sqnr < LEAST_DB[case.precision] and not each["exact"]:
            return Finding(
                str(case),
                "far from onnxruntime",
                f"{each['name']} {sqnr:.1f} dB, error {each['max_abs_error']:.3g}",
            )
    return "ok"
