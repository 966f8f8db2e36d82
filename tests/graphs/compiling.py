"""Whole compiles of drawn graphs: the program runs on the chip model as its references say, or is refused.

Compiled as the command line does, so that what a target refuses goes to the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.ir import Array, Graph, Node
from npuc.onnx_files.export import to_onnx
from npuc.program import Program, as_loaded
from npuc.reference import session
from npuc.regions.artefact import Contents, is_composite, part_of
from npuc.regions.running import CompositeRunner
from npuc.samples import loading as data
from npuc.samples.loading import Samples
from npuc.target import FLOATING, Options, Request, Runner, quickest, target
from npuc.verification.bits import BitDifferences
from npuc.verification.metrics import Difference, Tolerance
from tests.compiled import compilation
from tests.graphs.checking import Finding

if TYPE_CHECKING:
    import onnx

REFUSALS = ("E2", "E3")
"""Codes of operators that a target has not, and of what does not fit: both name a node and a remedy."""
LEAST_DB = {"int8": 3.0, "int16": 30.0, "fp16": 30.0, "fp32": 70.0}
"""Signal to noise of an output against onnxruntime below which more than rounding is wrong."""
NEGLIGIBLE = {"int8": 2e-2, "int16": 1e-4, "fp16": 1e-3, "fp32": 1e-6}
"""Errors, of the largest value before, that are rounding whatever the size of the output, where sums cancel."""
WINOGRAD = 3.0
"""How many times as much it is where 8-bit weights are transformed before they are rounded."""
NO_ORACLE = "onnxruntime refuses"
HOSTED = "ok, partly on the host"
FOREIGN = {"Tanh": "Asinh", "Softsign": "Atan", "Elu": "Celu", "Neg": "Sign", "Exp": "Atan", "Abs": "Selu"}
"""Operators that npuc has, and what takes their place to try those that only the host knows.

None is steeper than its slope at 0: a sine of thousands would show a rounding before it as another value."""


@dataclass(frozen=True)
class Case:
    """What graphs are compiled for."""

    target: str
    precision: str
    level: str = "0"
    weights: str | None = None
    """The form of weights that is asked for."""
    machine: str | None = None
    """A file that describes the machine, or the name of one."""
    isa: str = "extended"
    proof: str = "off"
    deny: bool = False
    """The host runs every second kind of operator."""
    foreign: bool = False
    """Some operators are replaced by those that only the host knows."""

    def __str__(self) -> str:
        parts = (
            self.target,
            self.precision,
            self.machine,
            self.weights,
            "" if self.isa == "extended" else self.isa,
        )
        return "/".join(part for part in parts if part)

    @property
    def options(self) -> Options:
        """The options of the compilation."""
        flags = {"isa": self.isa} if self.isa != "extended" else {}
        flags |= {"weights": self.weights} if self.weights else {}
        return Options(self.machine, self.precision, level=self.level, proof=self.proof, flags=flags)


CASES = (
    Case("easynpu", "int8"), Case("easynpu", "int8", machine="large"), Case("easynpu", "int8", isa="documented"),
    Case("nvdla-small", "int8"), Case("nvdla-large", "int8"), Case("nvdla-full", "int8"),
    Case("nvdla-full", "int8", weights="winograd"), Case("nvdla-full", "int8", weights="sparse"),
    Case("nvdla-full", "int16"), Case("nvdla-full", "fp16"), Case("bm1684", "fp32"), Case("bm1684", "int8"),
)  # fmt: skip


def varied(case: Case, seed: int) -> Case:
    """The case for the graph of a seed: now and then with a proof, denied layers, or foreign operators."""
    return replace(case, proof="one" if seed % 7 == 0 else "off", deny=seed % 11 == 0, foreign=seed % 13 == 0)


def check_compile(graph: Graph, values: Sequence[Mapping[str, Array]], case: Case, folder: Path) -> Finding | str:
    """A finding; or "ok", or the code and reason of a refusal.

    values: of all tensors, a mapping a sample; with those of the inputs the network is calibrated and run.
    folder: where the model is written.
    """
    feeds = [{name: each[name] for name in graph.inputs} for each in values]
    try:
        proto = to_onnx(graph)
    except Exception as error:
        return _traceback(error, case, "writing the model")
    if case.foreign:
        _make_foreign(proto)
    model = folder / "model.onnx"
    model.write_bytes(proto.SerializeToString())
    try:
        oracle = session(proto, few_runs=True)
        taken = {each.name for each in oracle.get_inputs()}
        exact = [oracle.run(list(graph.outputs), {name: feed[name] for name in taken}) for feed in feeds]
    except Exception:  # onnxruntime raises many unrelated types; what it has no form of nothing is compared with
        return NO_ORACLE
    stacked = {name: np.stack([feed[name] for feed in feeds]) for name in graph.inputs}
    try:
        compiled = _compiled(model, stacked, case, folder, _denied(proto) if case.deny else ())
    except NpucError as error:
        return _refusal(error, case)
    except Exception as error:
        return _traceback(error, case, "compiling")
    expected = {name: [values[at] for values in exact] for at, name in enumerate(graph.outputs)}
    try:
        return _judged(_Run(compiled, case, stacked), expected, rooms(graph, values, case), case)
    except NpucError as error:
        return Finding(str(case), f"compiled, then {error.problems[0].code}", str(error).splitlines()[0])
    except Exception as error:
        return _traceback(error, case, "verifying")


def rooms(graph: Graph, values: Sequence[Mapping[str, Array]], case: Case) -> dict[str, float]:
    """Errors of every tensor that are rounding: of the largest value before it, or a step of the model's.

    A factor of a product magnifies the other's.
    """
    found: dict[str, float] = {}
    share = NEGLIGIBLE[case.precision] * (WINOGRAD if case.weights == "winograd" else 1.0)
    for name in graph.inputs:
        found[name] = share * max(1.0, *(_largest(each[name]) for each in values))
    for node in graph.nodes:
        before = max((found.get(name, 0.0) for name in node.inputs), default=0.0)
        if node.op == "Mul":
            before *= max(
                1.0,
                *(_largest(each.get(name, graph.constants.get(name))) for each in values for name in node.inputs),
            )
        if _may_divide_by_zero(graph, node, values, found):
            before = np.inf
        for name in node.outputs:
            largest = max(_largest(each.get(name)) for each in values)
            found[name] = max(before, share * largest, _step(graph, node))
    return found


def _largest(value: Array | None) -> float:
    return 0.0 if value is None else float(np.abs(value).max(initial=0))


def _may_divide_by_zero(
    graph: Graph, node: Node, values: Sequence[Mapping[str, Array]], room: Mapping[str, float]
) -> bool:
    """Whether a computed divisor is so small beside others of its tensor that rounding may make it 0.

    A logarithm is infinite there as well.
    """
    name = {"Div": node.inputs[-1], "Reciprocal": node.inputs[0], "Log": node.inputs[0]}.get(node.op, "")
    if not name or name in graph.constants:
        return False
    return min(float(np.abs(each[name]).min(initial=np.inf)) for each in values) <= room.get(name, 0.0)


def _step(graph: Graph, node: Node) -> float:
    """What a value moves by that meets a tie of a quantisation in the model, with some room."""
    if node.op == "FakeQuantize":
        return 1.5 * node.number("scale")
    scale = graph.constants.get(node.inputs[1]) if node.op == "DequantizeLinear" else None
    return 0.0 if scale is None else 1.5 * float(scale.max())


def _make_foreign(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in FOREIGN:
            node.op_type = FOREIGN[node.op_type]
            del node.attribute[:]


def _denied(model: onnx.ModelProto) -> tuple[str, ...]:
    """Every second kind of operator, and at least one."""
    return tuple(sorted({node.op_type for node in model.graph.node} - {"Identity"}))[::2]


class _Run:
    """A program on the chip model, and how its integers compare with those of its reference."""

    def __init__(self, compiled: Program, case: Case, stacked: Mapping[str, Array]) -> None:
        self.case, self.target = case, target(case.target)
        self.program = as_loaded(compiled)
        self.bits: list[BitDifferences] = []
        if is_composite(self.program):
            self.parts = [part_of(self.program, step.path) for step in Contents.of(self.program.manifest).parts]
            self.found = CompositeRunner(self.program, self._runner).run_parts(stacked, self._compare)
        else:
            self.parts = [self.program]
            shown: dict[str, Array] = {}
            self.found = self._runner(self.program)(stacked, shown.__setitem__)
            self._compare(0, stacked, shown, self.found)

    def _runner(self, program: Program) -> Runner:
        return self.target.runner(program, quickest(self.target))

    def _compare(
        self, number: int, fed: Mapping[str, Array], shown: Mapping[str, Array], given: Mapping[str, Array]
    ) -> None:
        if self.case.precision in FLOATING:
            return
        part = self.parts[number]
        bits = BitDifferences(part, self.target, few_runs=True)
        for at in range(len(next(iter(fed.values())))):
            bits.add(*({name: values[at, ...] for name, values in each.items()} for each in (fed, shown, given)))
        self.bits.append(bits)


def _judged(
    run: _Run, expected: Mapping[str, Sequence[Array]], room: Mapping[str, float], case: Case
) -> Finding | str:
    differences: dict[str, Difference] = {}
    for name, values in expected.items():
        differences[name] = Difference()
        for wanted, found in zip(values, run.found[name], strict=True):
            if (wanted.shape, wanted.dtype) != (np.shape(found), np.asarray(found).dtype):
                what = (
                    f"{wanted.dtype}{list(wanted.shape)} became {np.asarray(found).dtype}{list(np.shape(found))}"
                )
                return Finding(str(case), "changes the interface", f"{name}: {what}")
            differences[name].add(wanted, found)
    for bits in run.bits:
        layer = next(bits.faults(), None)
        if layer is not None:
            many = bits.differing.get(layer["tensor"])
            return Finding(str(case), "not bit exact", f"{layer['tensor']} in {many} elements")
        # onnxruntime rounds a graph output that a Transpose and a QuantizeLinear read, whatever its options
        wrong = [name for name in bits.strayed if name not in differences or differences[name].noise]
        if wrong:
            return Finding(str(case), "not bit exact", f"output {wrong[0]}")
    for name, each in differences.items():
        sqnr = each.sqnr_db
        if expected[name][0].dtype.kind != "f" or sqnr is None:
            continue  # an index or a step: another one at a tie; floats behind it show what is wrong
        if sqnr < LEAST_DB[case.precision] and each.largest > room[name]:
            return Finding(str(case), "far from onnxruntime", f"{name} {sqnr:.1f} dB, error {each.largest:.3g}")
    return "ok" if not is_composite(run.program) else HOSTED


def _compiled(
    model: Path, stacked: Mapping[str, Array], case: Case, folder: Path, deny: tuple[str, ...] = ()
) -> Program:
    calibration = folder / "samples.npz"
    data.save(calibration, stacked)
    options = replace(case.options, deny=deny)
    return compile_model(Request(model, target(case.target), options, [calibration]))[0]


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


def compiled_program(graph: Graph, stacked: Mapping[str, Array], case: Case, folder: Path) -> tuple[Path, Program]:
    """The model's file, and its program with scales of these samples."""
    model, calibration = folder / "model.onnx", folder / "samples.npz"
    model.write_bytes(to_onnx(graph).SerializeToString())
    data.save(calibration, stacked)
    return model, compilation(Request(model, target(case.target), case.options, [calibration])).program


def _verified(model: Path, compiled: Program, case: Case, stacked: Mapping[str, Array]) -> Mapping[str, Any]:
    loaded = as_loaded(compiled)
    tolerance = Tolerance(sqnr_db=-1000, cosine=-2)
    if case.precision in FLOATING:
        from npuc.verification.batches import FloatCheck as Check
    else:
        from npuc.verification.batches import IntegerCheck as Check
    check = Check(model, loaded, target(case.target), "own")
    check.batch(Samples(stacked))
    return check.report(tolerance)


def _refusal(error: NpucError, case: Case) -> Finding | str:
    first = error.problems[0]
    # what takes an operator's place may be infinite where that is not, as behind a logarithm of 0
    known = (*REFUSALS, "E402") if case.foreign else REFUSALS
    if all(each.code.startswith(known) for each in error.problems):
        return re.sub(r"-?\d+", "N", f"{first.code} {first.op or ''}: {first.reason}")
    return Finding(str(case), f"refused with {first.code}", str(error).splitlines()[0][:300])


def _traceback(error: Exception, case: Case, when: str) -> Finding:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    at = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place is not None else ""
    return Finding(str(case), f"{type(error).__name__} {when} in {at}", str(error)[:200])
