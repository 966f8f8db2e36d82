"""ONNX's own operator test cases through compile and run on EasyNPU, and the page docs/onnx-node-cases.md.

    python benchmarks/node_cases.py [--check] [NAME ...]

Writes the page; with names, only prints these cases. --check: exit code 1 if a case runs with more than 3 steps of
error. Anything but a result or a refusal ends in a traceback.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from npuc import driver, program
from npuc.errors import UnsupportedOperator
from npuc.ir import Array
from npuc.onnx_backend import CALIBRATION_SAMPLES, like
from npuc.onnx_suite import MOST_STEPS, output_step
from npuc.storage.data import load
from npuc.target import Options, target

ONNX_VERSION = "1.23.2"
"""The onnx package generates the cases, which differ by version."""
PAGE = Path(__file__).resolve().parents[1] / "docs" / "onnx-node-cases.md"

CNN_OPERATORS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "InstanceNormalization", "LRN",
    "Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Softmax",
    "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMean", "Resize",
    "Add", "Sub", "Mul", "Div", "Concat", "Split", "Slice", "Pad", "Reshape", "Squeeze", "Unsqueeze", "Flatten",
    "Transpose", "Expand", "DepthToSpace", "SpaceToDepth", "Dropout", "Identity",
)  # fmt: skip
"""The operators of convolutional networks exported for inference."""
OTHER_OPERATORS = (
    "Abs", "Ceil", "Celu", "Erf", "Exp", "Floor", "Gather", "Gelu", "GroupNormalization", "LayerNormalization",
    "Log", "LogSoftmax", "Max", "Mean", "Min", "Mish", "Neg", "Pow", "Reciprocal", "ReduceMax", "ReduceMin",
    "ReduceSum", "Round", "Selu", "Softplus", "Softsign", "Sqrt", "Sum", "Swish", "Tile", "Upsample",
)  # fmt: skip
"""Other operators that the frontend reads."""
COMPUTED_OPERANDS = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Pow", "Concat", "MatMul")
"""Operators whose other inputs may also be computed: they are tried both ways."""
INTEGERS = (TensorProto.INT32, TensorProto.INT64)


@dataclass(frozen=True)
class Case:
    """A test case of one node. `side`: it has integer inputs after the first."""

    name: str
    operator: str
    side: bool
    model: onnx.ModelProto
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


def cases(operators: Sequence[str]) -> Iterator[Case]:
    """The cases of one node of these operators: float32 first input and outputs, other inputs floats or integers.

    Cases that express an operator by others ("_expanded") are left out.
    """
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for each in found:
        model = each.model
        if model is None or len(model.graph.node) != 1 or "_expanded" in each.name:
            continue
        (node,) = model.graph.node
        types = [value.type.tensor_type.elem_type for value in model.graph.input]
        outputs = {value.type.tensor_type.elem_type for value in model.graph.output}
        if node.domain or node.op_type not in operators or {*types[:1], *outputs} != {TensorProto.FLOAT}:
            continue
        if types and all(kind in (TensorProto.FLOAT, *INTEGERS) for kind in types):
            given, wanted = (tuple(np.asarray(value) for value in values) for values in each.data_sets[0])
            side = any(kind in INTEGERS for kind in types)
            yield Case(each.name.removeprefix("test_"), node.op_type, side, model, given, wanted)


@dataclass(frozen=True)
class Outcome:
    """How a case ended: on the array, on the host alone, or refused."""

    kind: str
    steps: float | None = None
    refusal: str | None = None

    @property
    def good(self) -> bool:
        """Whether the case is refused or within the tolerance."""
        return self.steps is None or self.steps <= MOST_STEPS

    def __str__(self) -> str:
        return self.refusal.replace("|", "/") if self.refusal is not None else f"{self.kind}, {self.steps:.1f}"


def outcome(case: Case, *, computed: bool = False) -> Outcome:
    """Compiles and runs a case. Its first input is data; the others are constants, or data too if `computed`.

    Every exception but UnsupportedOperator propagates.
    """
    with TemporaryDirectory() as folder:
        try:
            compiled, found = _run(case, Path(folder), computed=computed)
        except UnsupportedOperator as error:
            problem = error.problems[0]
            return Outcome("refused", refusal=f"{problem.code}: {problem.reason}")
    on_array = any(step["kind"] == "segment" for step in compiled.manifest["steps"])
    names = [value.name for value in case.model.graph.output]
    errors = [_steps(compiled, name, y, found[name]) for name, y in zip(names, case.outputs, strict=True)]
    return Outcome("array" if on_array else "host", max(errors))


def _run(case: Case, folder: Path, *, computed: bool) -> tuple[program.Program, Mapping[str, Array]]:
    easynpu, model = target("easynpu"), onnx.ModelProto()
    model.CopyFrom(case.model)
    feeds: dict[str, Array] = {}
    for position, (declared, value) in enumerate(zip(case.model.graph.input, case.inputs, strict=True)):
        if position and not computed:
            model.graph.initializer.append(numpy_helper.from_array(value, declared.name))
        else:
            feeds[declared.name] = value
    path, calibration, data = folder / "case.onnx", folder / "calibration.npz", folder / "data.npz"
    onnx.save(model, path)
    np.savez(calibration, **{name: like(value) for name, value in feeds.items()})
    np.savez(data, **{name: value[None] for name, value in feeds.items()})
    compiled, _ = driver.compile_model(path, easynpu, Options(machine="large"), {}, [calibration])
    program.save(compiled, folder / "case.npu")
    loaded = program.load(folder / "case.npu")
    return loaded, driver.run_program(loaded, easynpu, load([data], driver.program_inputs(loaded)))


def _steps(compiled: program.Program, output: str, wanted: Array, found: Array) -> float:
    """The largest error in quantisation steps of the output.

    A step is the largest scale of the int8 tensors from which the output is made by data movement only; if the
    host computed it in float32, or nothing is computed, it is 1/127 of the largest expected magnitude.
    """
    exact = wanted.astype(np.float64).ravel()
    step = output_step(compiled, output)
    step = float(np.abs(exact).max(initial=0)) / 127 if step is None else step
    return float(np.abs(found.ravel() - exact).max(initial=0)) / (step or 1.0)


@dataclass(frozen=True)
class Row:
    """A line of the page; `computed` is None for operators with a single operand."""

    case: Case
    constant: Outcome
    computed: Outcome | None

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Both results, or the only one."""
        return (self.constant,) if self.computed is None else (self.constant, self.computed)


def rows(operators: Sequence[str], names: Sequence[str] = ()) -> Iterator[Row]:
    """The results of every case of these operators, or of the named cases."""
    for case in cases(operators):
        if not names or case.name in names:
            both = case.operator in COMPUTED_OPERANDS and len(case.inputs) > 1 and not case.side
            yield Row(case, outcome(case), outcome(case, computed=True) if both else None)


INTRODUCTION = """# ONNX node cases
<!-- written by benchmarks/node_cases.py; do not edit -->

The onnx package generates test cases for its operators (`onnx.backend.test.case.node.collect_testcases`). This
page says what becomes of those of onnx {version} on EasyNPU (machine `large`): each is compiled with calibration,
run by the simulator, and compared with the output that the case expects.

Which cases: one node of ONNX's own domain; the first input and all outputs are float32, the other inputs float32
or integers; not the spellings of an operator by others (`_expanded`). The first input is data, all others
(weights, shapes, sizes, second operands) are constants; operators with several operands are also tried with all of
them as data (last column). Calibration: the case's own input and {samples} random ones of its mean, deviation and
range.

The number is the largest error in quantisation steps of the output; at most {most:g} are allowed. A step is the
scale of the int8 tensor that the output is, or is made of by movement; where the host computes the output in
float32 or only moves data, 1/127 of its largest magnitude. *array*: at least one instruction runs. *host*: the
program has host steps only, as its operator just moves data or is one that EasyNPU leaves to the host
([operators](operators.md)).
"""


def page(cnn: Sequence[Row], others: Sequence[Row]) -> str:
    """The text of the page."""
    lines = [INTRODUCTION.format(version=ONNX_VERSION, samples=CALIBRATION_SAMPLES - 1, most=MOST_STEPS)]
    for title, found in (("Operators of a CNN", cnn), ("Other operators that npuc reads", others)):
        floats = sum(not row.case.side for row in found)
        lines += [
            f"## {title}",
            "",
            f"{floats} cases in float32 only, {len(found) - floats} with integer inputs.",
            "",
        ]
        lines += [summary("further inputs constant", [row.constant for row in found])]
        lines += [summary("all operands data", [row.computed for row in found if row.computed is not None]), ""]
        lines += ["| case | operator | result | all operands data |", "|--|--|--|--|"]
        lines += [
            f"| {row.case.name} | {row.case.operator} | {row.constant} | {row.computed or ''} |" for row in found
        ]
        lines.append("")
    return "\n".join(lines)


def summary(title: str, outcomes: Sequence[Outcome]) -> str:
    """The number of cases by result, and the largest error."""
    array, host, refused = (sum(each.kind == kind for each in outcomes) for kind in ("array", "host", "refused"))
    worst = max((each.steps for each in outcomes if each.steps is not None), default=0.0)
    return (
        f"- {title}: {array + host} of {len(outcomes)} run, {array} on the array and {host} on the host alone; "
        f"{refused} are refused. Largest error: {worst:.1f} steps."
    )


@click.command(help=__doc__)
@click.option("--check", is_flag=True)
@click.argument("names", nargs=-1)
def main(check: bool, names: tuple[str, ...]) -> None:
    """Writes the page, or prints the named cases."""
    if onnx.__version__ != ONNX_VERSION:
        raise click.UsageError(f"the cases are those of onnx {ONNX_VERSION}, not {onnx.__version__}")
    cnn, others = (list(rows(operators, names)) for operators in (CNN_OPERATORS, OTHER_OPERATORS))
    if names:
        for row in (*cnn, *others):
            click.echo(f"{row.case.name}: {'; '.join(map(str, row.outcomes))}")
    else:
        PAGE.write_text(page(cnn, others), encoding="utf-8")
    wrong = [row for row in (*cnn, *others) if not all(each.good for each in row.outcomes)]
    for row in wrong:
        click.echo(f"{row.case.name}: more than {MOST_STEPS:g} steps", err=True)
    sys.exit(1 if wrong and check else 0)


if __name__ == "__main__":
    main()
