"""The ONNX package's own operator tests on EasyNPU: each is compiled and run, or refused by name.

    python benchmarks/node_cases.py            prints the table of docs/onnx-node-cases.md
    python benchmarks/node_cases.py --write    writes the page

Selection: the single-node cases of onnx.backend.test whose operator belongs to a CNN (OPERATORS), whose first
input and outputs are float32 and whose other inputs are float32 or integers. All inputs but the first are bound as
constants. Calibration: the case's own input and seven slightly changed copies; machine: large. The error is in
quantisation steps of the output (of 1/127 of the largest output where a host step gives a float).
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from npuc import driver, program
from npuc.data import Samples
from npuc.errors import NpucError
from npuc.target import Options, target

PAGE = Path(__file__).resolve().parents[1] / "docs" / "onnx-node-cases.md"
LISTED = """
    Conv ConvTranspose Gemm MatMul BatchNormalization InstanceNormalization LRN Relu LeakyRelu PRelu Clip Sigmoid
    HardSigmoid HardSwish Tanh Elu Softplus Gelu Mish Softmax LogSoftmax MaxPool AveragePool GlobalAveragePool
    GlobalMaxPool Add Sub Mul Div Max Min Sum Mean Concat Split Slice Pad Reshape Squeeze Unsqueeze Flatten
    Transpose Expand Resize Upsample DepthToSpace SpaceToDepth ReduceMean Dropout Identity
"""
OPERATORS = frozenset(LISTED.split())
FLOAT, INTEGERS = onnx.TensorProto.FLOAT, (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
MOST_STEPS = 3.0


@dataclass(frozen=True)
class Result:
    """What became of a case: `array`, `host` (no layer word) or `refused`, and the error or the reason."""

    case: str
    operator: str
    outcome: str
    steps: float | None = None
    reason: str = ""


def cases() -> Iterator[tuple[str, onnx.ModelProto, list[np.ndarray], list[np.ndarray]]]:
    """Name, model, inputs and expected outputs of every selected case."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        model = case.model
        if model is None or len(model.graph.node) != 1 or model.graph.node[0].domain or not model.graph.input:
            continue
        inputs = [each.type.tensor_type.elem_type for each in model.graph.input]
        outputs = [each.type.tensor_type.elem_type for each in model.graph.output]
        floats = inputs[0] == FLOAT and set(outputs) == {FLOAT} and set(inputs) <= {FLOAT, *INTEGERS}
        if floats and model.graph.node[0].op_type in OPERATORS:
            given, expected = case.data_sets[0]
            yield case.name, model, [np.asarray(x) for x in given], [np.asarray(y) for y in expected]


def attempt(name: str, model: onnx.ModelProto, inputs: list[np.ndarray], expected: list[np.ndarray]) -> Result:
    """Compiles and runs one case."""
    operator = model.graph.node[0].op_type
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    first, *others = model.graph.input
    for each, value in zip(others, inputs[1:], strict=True):
        bound.graph.initializer.append(numpy_helper.from_array(value, each.name))
    try:
        with tempfile.TemporaryDirectory() as folder:
            compiled, outputs = _run(bound, first.name, inputs[0], Path(folder))
    except NpucError as error:
        return Result(name, operator, "refused", None, f"{error.problems[0].code} {error.problems[0].reason}")
    steps = max(
        float(np.abs(outputs[each.name].reshape(-1) - wanted.reshape(-1)).max(initial=0))
        / _step(compiled, each.name, wanted)
        for each, wanted in zip(model.graph.output, expected, strict=True)
    )
    on_array = any(entry["kind"] == "segment" for entry in compiled.manifest["steps"])
    return Result(name, operator, "array" if on_array else "host", steps)


def _run(
    model: onnx.ModelProto, name: str, x: np.ndarray, folder: Path
) -> tuple[program.Program, dict[str, np.ndarray]]:
    path, data = folder / "model.onnx", folder / "calibration.npz"
    path.write_bytes(model.SerializeToString())
    random = np.random.default_rng(0)
    spread = 0.05 * (x.std() if x.size > 1 else np.abs(x).max(initial=0))
    rows = [x, *(x + spread * random.standard_normal(x.shape) for _ in range(7))]
    np.savez(data, **{name: np.stack(rows).astype(x.dtype)})
    easynpu = target("easynpu")
    compiled, _ = driver.compile_model(path, easynpu, Options(machine="large"), {}, [data])
    program.save(compiled, folder / "out.npu")
    loaded = program.load(folder / "out.npu")
    return loaded, driver.run_program(loaded, easynpu, Samples({name: x[None]}))


def _step(compiled: program.Program, output: str, wanted: np.ndarray) -> float:
    """The quantisation step behind an output: of the DequantizeLinear that gives it, through data movement."""
    names, scale = {output}, 0.0
    for entry in reversed(compiled.manifest["steps"]):
        if entry["kind"] == "host" and names & set(entry["outputs"]):
            if entry["op"] == "DequantizeLinear":
                scale = max(scale, entry["attrs"]["scale"])
            elif entry["conversion"]:
                names |= set(entry["inputs"])
    return scale or float(np.abs(wanted).max(initial=0)) / 127 or 1.0


def page(results: list[Result]) -> str:
    """docs/onnx-node-cases.md."""
    counts = Counter(each.outcome for each in results)
    worst = max(each.steps for each in results if each.steps is not None)
    lines = [
        "# The ONNX package's operator tests on EasyNPU",
        "<!-- written by benchmarks/node_cases.py -->",
        "",
        f"onnx {onnx.__version__}: {len(results)} cases. {counts['array']} run on the array, {counts['host']} are",
        f"data movement or host steps alone, {counts['refused']} are refused. Largest error: {worst:.2f} steps.",
        "",
        "| case | operator | outcome | steps | reason |",
        "|--|--|--|--|--|",
    ]
    for each in results:
        steps = "" if each.steps is None else f"{each.steps:.2f}"
        lines.append(
            f"| {each.case} | {each.operator} | {each.outcome} | {steps} | {each.reason.replace('|', '/')} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs all cases."""
    warnings.simplefilter("ignore")
    text = page([attempt(*case) for case in cases()])
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
