"""Small ONNX models drawn at random, near the borders of what the lowering of BM1684 tells apart.

    python -m tests.bm1684.random_graphs FIRST COUNT      a longer run than the suite's; prints what is wrong

Ranks 2 to 5, batches, extents around the 64 NPUs and around the interface's largest, broadcasts of every kind,
steps below 0, several readers of one tensor, outputs in the middle.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from npuc.errors import NpucError
from npuc.ir import Array
from npuc.target import Options, Request
from npuc.targets.bm1684.target import BM1684
from tests.compiled import compilation

EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129)
LARGE = (1000, 2047, 2048, 4095, 4096, 4097)
MOST = 24_000
"""Elements of a tensor."""


class Drawing:
    """A model while its nodes are drawn."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.inputs: list[str] = []

    def pick(self, *values: Any) -> Any:
        """One of the values."""
        return values[int(self.rng.integers(len(values)))]

    def floats(self, shape: tuple[int, ...], offset: float = 0.0) -> Array:
        """Random numbers around an offset."""
        return (self.rng.standard_normal(shape) + offset).astype(np.float32)

    def constant(self, values: Array) -> str:
        """The name of a new constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = values
        return name

    def input(self, shape: tuple[int, ...]) -> str:
        """A new input."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.shapes[name] = shape
        return name

    def node(self, op: str, inputs: list[str], shape: tuple[int, ...], **attrs: Any) -> str:
        """A new node with one output of this shape."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attrs))
        self.shapes[name] = tuple(shape)
        return name

    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""
        rank = self.pick(2, 2, 2, 3, 4, 4, 5)
        while True:
            shape = tuple(int(self.pick(*EXTENTS)) for _ in range(rank))
            if self.rng.random() < 0.08:
                at = int(self.rng.integers(rank))
                shape = (*shape[:at], int(self.pick(*LARGE)), *shape[at + 1 :])
            if rank > 2 and self.rng.random() < 0.6:
                shape = (int(self.pick(1, 1, 1, 2, 3)), *shape[1:])
            if prod(shape) <= MOST:
                return shape

    def operand(self, shape: tuple[int, ...], offset: float = 0.0) -> str:
        """A constant or an input that broadcasts to a shape."""
        kept = int(self.rng.integers(len(shape) + 1)) if self.rng.random() < 0.3 else len(shape)
        mine = tuple(1 if self.rng.random() < 0.45 else n for n in shape[len(shape) - kept :])
        if self.rng.random() < 0.25 or not mine:
            return self.constant(self.floats(mine, offset))
        return self.input(mine) if self.rng.random() < 0.4 else self.constant(self.floats(mine, offset))


def _unary(d: Drawing, x: str) -> str:
    op = d.pick("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish", "Erf", "LeakyRelu", "Elu", "Softsign")
    return d.node(op, [x], d.shapes[x])


def _clip(d: Drawing, x: str) -> str:
    limits = [d.constant(np.float32(each)) for each in d.pick((-0.5, 0.7), (0, 6), (0.1, 0.4))]
    return d.node("Clip", [x, *limits], d.shapes[x])


def _softmax(d: Drawing, x: str) -> str:
    return d.node("Softmax", [x], d.shapes[x], axis=int(d.rng.integers(len(d.shapes[x]))))


def _binary(d: Drawing, x: str) -> str:
    op, shape = d.pick("Add", "Sub", "Mul", "Max", "Min"), d.shapes[x]
    same = [name for name, other in d.shapes.items() if other == shape]
    other = d.pick(*same) if d.rng.random() < 0.4 else d.operand(shape, d.pick(0.0, 2.0))
    return d.node(op, [x, other] if d.rng.random() < 0.5 else [other, x], shape)


def _div(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    mine = tuple(1 if d.rng.random() < 0.4 else n for n in shape)
    return d.node("Div", [x, d.constant(np.abs(d.floats(mine)) + 0.5)], shape)


def _spread(d: Drawing, x: str) -> str:
    """x that is broadcast itself."""
    shape = d.shapes[x]
    more = tuple(int(d.pick(2, 3, 65)) if n == 1 and d.rng.random() < 0.5 else n for n in shape)
    if prod(more) > MOST:
        return _binary(d, x)
    return d.node(d.pick("Add", "Mul"), [x, d.constant(d.floats(more))], more)


def _scalars(d: Drawing, x: str) -> str:
    a, b = (d.constant(np.float32([each])) for each in (0.75, -1.5))
    return d.node("Add", [d.node("Mul", [x, a], d.shapes[x]), b], d.shapes[x])


def _batch_norm(d: Drawing, x: str) -> str:
    c = d.shapes[x][1:2]
    values = [d.floats(c, 1.0), d.floats(c), d.floats(c), np.abs(d.floats(c)) + 0.5]
    return d.node("BatchNormalization", [x, *map(d.constant, values)], d.shapes[x])


def _prelu(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    slope = d.pick((1,), (shape[1], *(1 for _ in shape[2:])))
    return d.node("PRelu", [x, d.constant(d.floats(slope))], shape)


def _slice(d: Drawing, x: str) -> str:
    shape = list(d.shapes[x])
    axes = sorted({int(d.rng.integers(len(shape))) for _ in range(d.pick(1, 1, 2))})
    starts, ends, steps = [], [], []
    for axis in axes:
        step = int(d.pick(1, 1, 2, 3, -1, -2))
        a, b = sorted(int(v) for v in d.rng.integers(0, shape[axis] + 1, 2))
        low, high = (0, shape[axis]) if b - a < 1 else (a, b)
        first, behind = (low, high) if step > 0 else (high - 1, low - 1)
        starts.append(first)
        ends.append(behind if behind >= 0 else -(2**31))
        steps.append(step)
        shape[axis] = len(range(first, behind, step))
    given = [d.constant(np.array(each, np.int64)) for each in (starts, ends, axes, steps)]
    return d.node("Slice", [x, *given], tuple(shape))


def _pad(d: Drawing, x: str) -> str:
    shape, mode = d.shapes[x], d.pick("constant", "constant", "reflect", "edge")
    most = [min(n - 1, 3) if mode == "reflect" else 3 for n in shape]
    pads = [[int(d.rng.integers(0, m + 1)) if d.rng.random() < 0.5 else 0 for m in most] for _ in range(2)]
    result = tuple(n + a + b for n, a, b in zip(shape, *pads, strict=True))
    given = [d.constant(np.array(pads[0] + pads[1], np.int64))]
    if mode == "constant":
        given.append(d.constant(np.float32(d.pick(0, 0.5, -2))))
    return d.node("Pad", [x, *given], result, mode=mode)


def _transpose(d: Drawing, x: str) -> str:
    perm = [int(each) for each in d.rng.permutation(len(d.shapes[x]))]
    return d.node("Transpose", [x], tuple(d.shapes[x][each] for each in perm), perm=perm)


def _reshape(d: Drawing, x: str) -> str:
    left, shape = prod(d.shapes[x]), list[int]()
    for _ in range(d.pick(1, 2, 3)):
        extent = int(d.pick(*(n for n in range(1, min(left, 200) + 1) if left % n == 0)))
        shape.append(extent)
        left //= extent
    shape.insert(int(d.rng.integers(len(shape) + 1)), left)
    return d.node("Reshape", [x, d.constant(np.array(shape, np.int64))], tuple(shape))


def _concat(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    axis = int(d.rng.integers(len(shape)))
    fits = [
        name
        for name, other in d.shapes.items()
        if (*other[:axis], *other[axis + 1 :]) == (*shape[:axis], *shape[axis + 1 :]) and len(other) == len(shape)
    ]
    parts = [x, *(d.pick(*fits) for _ in range(d.pick(1, 2)))]
    result = (*shape[:axis], sum(d.shapes[each][axis] for each in parts), *shape[axis + 1 :])
    return d.node("Concat", parts, result, axis=axis)


def _expand(d: Drawing, x: str) -> str:
    shape = tuple(int(d.pick(1, 2, 5)) if n == 1 else n for n in d.shapes[x])
    return d.node("Expand", [x, d.constant(np.array(shape, np.int64))], shape)


def _product(d: Drawing, x: str) -> str:
    shape, n = d.shapes[x], int(d.pick(1, 5, 63, 64, 65, 77, 97, 129, 200))
    w = d.constant(d.floats((shape[-1], n)) / np.float32(max(shape[-1], 1)) ** 0.5)
    if len(shape) == 2 and d.rng.random() < 0.5:
        return d.node("Gemm", [x, w, d.constant(d.floats((n,)))], (shape[0], n))
    return d.node("MatMul", [x, w], (*shape[:-1], n))


def _conv(d: Drawing, x: str) -> str:
    n, c, h, w = d.shapes[x]
    group = d.pick(1, 1, c)
    outputs = c if group == c else int(d.pick(1, 5, 64, 65))
    k = 3 if min(h, w) >= 3 else 1
    weights = d.floats((outputs, c // group, k, k)) / np.float32(k * k * c / group) ** 0.5
    given = [d.constant(weights), d.constant(d.floats((outputs,)))]
    pad = k // 2
    return d.node("Conv", [x, *given], (n, outputs, h, w), pads=[pad] * 4, group=group, kernel_shape=[k, k])


def _pool(d: Drawing, x: str) -> str:
    n, c, h, w = d.shapes[x]
    if min(h, w) < 2:
        return d.node("GlobalAveragePool", [x], (n, c, 1, 1))
    shape = (n, c, (h - 2) // 2 + 1, (w - 2) // 2 + 1)
    return d.node(d.pick("MaxPool", "AveragePool"), [x], shape, kernel_shape=[2, 2], strides=[2, 2])


def _mean(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    axis = int(d.rng.integers(len(shape)))
    op = d.pick("ReduceMean", "ReduceMax", "ReduceMin")
    keep = int(d.pick(0, 1)) if len(shape) > 2 else 1
    return d.node(op, [x], (*shape[:axis], *[1] * keep, *shape[axis + 1 :]), axes=[axis], keepdims=keep)


def _gather(d: Drawing, x: str) -> str:
    shape = d.shapes[x]
    axis = int(d.rng.integers(len(shape)))
    count = int(d.pick(1, 2, 5, 9))
    indices = d.rng.integers(-shape[axis], shape[axis], count).astype(np.int64)
    return d.node("Gather", [x, d.constant(indices)], (*shape[:axis], count, *shape[axis + 1 :]), axis=axis)


def _squares(d: Drawing, x: str) -> str:
    return d.node("Pow", [x, d.constant(np.float32(d.pick(2, 3)))], d.shapes[x])


def _resize(d: Drawing, x: str) -> str:
    n, c, h, w = d.shapes[x]
    shape = (n, c, min(int(h * d.pick(1, 1.5, 2, 3)), 40), min(int(w * d.pick(0.75, 1, 2, 4)) or 1, 40))
    mode, coordinates = d.pick("linear", "linear", "nearest", "cubic"), d.pick("half_pixel", "align_corners")
    given = ["", "", d.constant(np.array(shape, np.int64))]
    return d.node("Resize", [x, *given], shape, mode=mode, coordinate_transformation_mode=coordinates)


def _instance(d: Drawing, x: str) -> str:
    c = d.shapes[x][1:2]
    return d.node("InstanceNormalization", [x, *(d.constant(d.floats(c, 1.0)) for _ in range(2))], d.shapes[x])


def _attention(d: Drawing, x: str) -> str:
    """A product of two tensors that are both computed."""
    shape = d.shapes[x]
    rank = len(shape)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    other = d.node("Transpose", [x], tuple(shape[axis] for axis in perm), perm=perm)
    return d.node("MatMul", [x, other], (*shape[:-1], shape[-2]))


ANY: tuple[Callable[[Drawing, str], str], ...] = (
    _unary, _clip, _softmax, _binary, _binary, _binary, _div, _spread, _scalars, _batch_norm, _prelu, _slice,
    _slice, _pad, _transpose, _reshape, _concat, _expand, _product, _mean, _gather, _squares, _attention,
)  # fmt: skip
IMAGES = (_conv, _conv, _pool, _resize, _instance)


def draw(seed: int) -> onnx.ModelProto:
    """The model of a seed."""
    d = Drawing(seed)
    d.input(d.shape())
    for _ in range(d.pick(1, 2, 3, 4, 6)):
        names = [name for name in d.shapes if len(d.shapes[name]) > 1]
        x = names[-1] if d.rng.random() < 0.7 else d.pick(*names)
        rules = (*ANY, *IMAGES) if len(d.shapes[x]) == 4 else ANY
        made = d.pick(*rules)(d, x)
        if prod(d.shapes[made]) > 4 * MOST:
            break
    read = {name for node in d.nodes for name in node.input}
    outputs = [node.output[0] for node in d.nodes if node.output[0] not in read or d.rng.random() < 0.1]
    return _model(d, outputs)


def _model(d: Drawing, outputs: list[str]) -> onnx.ModelProto:
    def values(names: list[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, d.shapes[name]) for name in names]

    read = {name for node in d.nodes for name in node.input}
    inputs = values([name for name in d.inputs if name in read])
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in d.constants.items()]
    graph = helper.make_graph(d.nodes, "random", inputs, values(outputs), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def _feeds(model: onnx.ModelProto, rng: np.random.Generator) -> dict[str, Array]:
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return {name: (rng.standard_normal(shape) + 0.25).astype(np.float32) for name, shape in shapes.items()}


def judged(model: onnx.ModelProto, seed: int, given: Mapping[str, Array] | None = None) -> str:
    """ok, or refused and why. Raises AssertionError for a wrong result, and whatever else goes wrong."""
    feeds = given or _feeds(model, np.random.default_rng(seed + 1))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in model.graph.output]
    expected = dict(zip(names, session.run(None, feeds), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        try:
            program = compilation(Request(path, BM1684, Options(precision="fp32"))).program
        except NpucError as error:
            return f"refused: {error}"
    found = BM1684.runner(program)({name: value[np.newaxis] for name, value in feeds.items()})
    for name, values in expected.items():
        room = 2e-5 * max(1.0, float(np.abs(values).max(initial=0)))
        np.testing.assert_allclose(found[name][0], values, rtol=0, atol=room, err_msg=name)
    return "ok"


def main(first: int, count: int) -> int:
    """Prints what goes wrong; 1 if anything does."""
    results = Counter[str]()
    for seed in range(first, first + count):
        model = draw(seed)
        try:
            result = judged(model, seed)
        except Exception as error:
            result = "wrong"
            ops = [(node.op_type, list(node.input)) for node in model.graph.node]
            print(seed, type(error).__name__, str(error).strip().splitlines()[:3], ops)
        if result.startswith("refused"):
            print(seed, result.splitlines()[0])
        results[result.partition(":")[0]] += 1
    print(dict(results))
    return int(results["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
