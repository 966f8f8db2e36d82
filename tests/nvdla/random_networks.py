"""Random ONNX networks for NVDLA: every operator it takes, awkward shapes, values read by many and by none.

Built from onnx.helper and ONNX's own shape inference: nothing of npuc is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import get_schema
from onnx.shape_inference import InferenceError, infer_node_outputs

from npuc.ir import Array

OPSET = 18
ELEMENTS = 30_000
"""Of a map, at most."""
PRODUCTS = 4_000_000
"""Of a convolution, at most: the functional model and onnxruntime take a moment for more."""
BORDERS = (16, 17, 32, 33, 64, 65, 128, 129, 256, 257)
"""Extents around powers of two, where hardware has its limits."""
FUNCTIONS: Mapping[str, Mapping[str, float]] = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.2}, "Sigmoid": {}, "Tanh": {}, "HardSwish": {}, "Elu": {"alpha": 0.7},
    "Softplus": {}, "Softsign": {}, "Exp": {}, "Erf": {}, "Abs": {}, "Neg": {}, "Mish": {},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
}  # fmt: skip
BINARY = ("Add", "Add", "Add", "Sub", "Mul", "Max", "Min")


class Network:
    """Grows a network of maps; every value so far may be read again, and some never are."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.maps: list[str] = []
        self.inputs: list[str] = []
        self.rough = False
        """Whether it has what int8 represents badly: histograms of magnitudes, products, exponentials."""
        self.input("x", self.first_shape())

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def one_of(self, *values: Any) -> Any:
        return values[self.number(0, len(values) - 1)]

    def chance(self, percent: int) -> bool:
        return self.number(1, 100) <= percent

    def first_shape(self) -> tuple[int, ...]:
        few, border = self.number(2, 9), self.one_of(*BORDERS)
        channels = self.one_of(1, 2, 3, 3, 4, 5, 8, self.number(1, 16), self.number(1, 70), self.one_of(*BORDERS))
        height, width = self.one_of(
            (1, 1), (1, self.number(2, 200)), (self.number(2, 60), 1), (self.number(2, 8), self.number(2, 8)),
            (self.number(5, 24), self.number(5, 24)), (self.number(5, 24), self.number(5, 24)),
            (self.number(2, 9), self.number(30, 150)), (few, border), (few, border), (border, few),
        )  # fmt: skip
        return (1, channels, height, width)

    def input(self, name: str, shape: tuple[int, ...]) -> str:
        self.shapes[name] = shape
        self.inputs.append(name)
        self.maps.append(name)
        return name

    def constant(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        self.shapes[name] = value.shape
        return name

    def weights(self, *shape: int) -> str:
        """Normal ones that keep the variance; now and then sparse, of one sign, or uneven between channels."""
        values = self.random.standard_normal(shape) / np.sqrt(max(prod(shape[1:]), 1))
        match self.number(0, 14):
            case 0:
                values *= self.random.random(shape) < 0.2
            case 1:
                values = np.abs(values)
            case 2:
                histogram = 10 ** self.random.uniform(-3, 1, (shape[0],) + (1,) * (len(shape) - 1))
                values, self.rough = values * histogram, True
            case 3:
                values[self.number(0, shape[0] - 1)] = 0
            case _:
                pass
        return self.constant(values.astype(np.float32))

    def bias(self, count: int) -> str:
        values = self.random.standard_normal(count) * self.one_of(0, 0.1, 1, 1)
        if self.chance(3):
            values, self.rough = values * 100, True
        return self.constant(values.astype(np.float32))

    def per_channel(self, count: int, low: float, high: float) -> str:
        return self.constant(self.random.uniform(low, high, count).astype(np.float32))

    def node(self, op: str, *inputs: str, outputs: int = 1, most: int = ELEMENTS, **attrs: Any) -> list[str]:
        """The names of an operator's results; none where ONNX or the sizes here (most) do not admit it."""
        names = [f"t{len(self.nodes)}"] + [f"t{len(self.nodes)}_{number}" for number in range(1, outputs)]
        made = helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attrs)
        kinds = {
            name: helper.make_tensor_type_proto(
                helper.np_dtype_to_tensor_dtype(self.constants[name].dtype) if name in self.constants else 1,
                self.shapes[name],
            )
            for name in inputs
            if name
        }
        data = {name: numpy_helper.from_array(self.constants[name]) for name in inputs if name in self.constants}
        schema = get_schema(op, OPSET)
        try:
            found = infer_node_outputs(
                schema, made, kinds, data, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
            )
        except InferenceError:
            return []
        shapes = [tuple(each.dim_value for each in found[name].tensor_type.shape.dim) for name in names]
        if any(prod(shape) > most or min(shape, default=1) < 1 for shape in shapes):
            return []
        self.nodes.append(made)
        self.shapes |= zip(names, shapes, strict=True)
        self.maps += names
        return names

    def any_map(self) -> str:
        """A value, most often one of the latest."""
        return self.maps[-self.number(1, min(self.one_of(1, 1, 2, 4, 9), len(self.maps)))]

    def grow(self) -> None:
        """One step; nothing where the value picked does not suit it."""
        x = self.any_map()
        shape = self.shapes[x]
        if len(shape) == 4:
            self.one_of(*STEPS)(self, x, shape)
        elif len(shape) == 2:
            self.one_of(*FLAT)(self, x, shape)
        else:
            self.one_of(_function, _function, _binary, _flatten)(self, x, shape)

    def model(self) -> onnx.ModelProto:
        """The network, with one to three outputs; a value that nothing reads may be none of them."""
        for _ in range(self.number(1, 8)):
            if len(self.inputs) < 2 and self.chance(5):
                self.input("z", self.one_of(self.shapes["x"], self.first_shape()))
            self.grow()
        computed = [name for name in self.maps if name not in self.inputs]
        if not computed:
            computed = self.node(self.one_of("Relu", "Neg"), "x", most=prod(self.shapes["x"]))
        chosen = [computed[-1]] + [name for name in computed[:-1] if self.chance(10)]
        if self.chance(3):
            chosen.append("x")
        if self.chance(30):
            chosen.reverse()
        inputs = [_value(name, self.shapes[name]) for name in self.inputs]
        graph = helper.make_graph(
            self.nodes, "random", inputs,
            [_value(name, self.shapes[name]) for name in chosen],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def _value(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


Shape = tuple[int, ...]
Step = Callable[[Network, str, Shape], object]


def _window(net: Network, height: int, width: int, most: int) -> dict[str, list[int]]:
    """kernel_shape, strides, dilations and pads of a window that may lie over a map."""
    high, wide = (
        min(net.one_of(1, 2, 3, 3, 3, 4, 5, 7, net.number(1, most)), extent + 2) for extent in (height, width)
    )
    stride = net.one_of(1, 1, 1, 2, 2, 3, 4)
    dilation = net.one_of(1, 1, 1, 1, 2, 3)
    strides = [stride, net.one_of(stride, stride, net.number(1, 4))]
    dilations = [dilation, net.one_of(dilation, net.number(1, 3))]
    reach = [(high - 1) * dilations[0], (wide - 1) * dilations[1]]
    pads = [0] * 4
    if net.chance(60):
        pads = [reach[0] // 2, reach[1] // 2] * 2
    elif net.chance(50):
        pads = [net.number(0, min(each, 12)) for each in reach * 2]
    for axis, extent in enumerate((height, width)):
        pads[axis] += max(0, reach[axis] + 1 - extent - pads[axis] - pads[axis + 2])
    return {"kernel_shape": [high, wide], "strides": strides, "dilations": dilations, "pads": pads}


def _divisor(net: Network, number: int) -> int:
    return net.one_of(*[each for each in range(1, number + 1) if number % each == 0])


def _convolution(net: Network, x: str, shape: Shape) -> list[str]:
    _, channels, height, width = shape
    window = _window(net, height, width, 11)
    group = net.one_of(1, 1, 1, 1, channels, _divisor(net, channels))
    outputs = group * net.number(1, max(1, net.one_of(8, 20, 70) // group))
    area = prod(window["kernel_shape"]) * height * width
    if area * channels // group * outputs > PRODUCTS * prod(window["strides"]):
        outputs = group
    w = net.weights(outputs, channels // group, *window["kernel_shape"])
    inputs = [x, w] + [net.bias(outputs)] * net.chance(60)
    if net.chance(10) and all(k >= s for k, s in zip(window["kernel_shape"], window["strides"], strict=True)):
        window.pop("pads")  # else onnxruntime skips a part of the image
        window["dilations"] = [1, 1]
        return net.node("Conv", *inputs, group=group, auto_pad=net.one_of("SAME_UPPER", "SAME_LOWER"), **window)
    return net.node("Conv", *inputs, group=group, **window)


def _activated(net: Network, x: str, shape: Shape) -> None:
    for made in _convolution(net, x, shape):
        op = net.one_of("Relu", "Relu", "Relu", "LeakyRelu", "Sigmoid", "HardSwish", "Clip", "PRelu")
        if op == "Clip":
            net.node("Clip", made, *_limits(net, 0.0, net.one_of(6.0, 1.0)))
        elif op == "PRelu":
            _prelu(net, made, net.shapes[made])
        else:
            net.node(op, made, **FUNCTIONS[op])


def _transposed(net: Network, x: str, shape: Shape) -> list[str]:
    _, channels, height, width = shape
    if height * width > 300:
        return []
    kernel = [net.number(1, 4), net.number(1, 4)]
    strides = [net.one_of(1, 2, 2, 3), net.one_of(1, 2, 2, 3)]
    pads = [net.number(0, each - 1) for each in kernel * 2] if net.chance(40) else [0] * 4
    group = net.one_of(1, 1, 1, channels)
    w = net.weights(channels, net.number(1, 12) if group == 1 else 1, *kernel)
    extra = {"output_padding": [net.number(0, each - 1) for each in strides]} if net.chance(20) else {}
    outputs = net.shapes[w][1] * group
    bias = [net.bias(outputs)] * net.chance(50)
    return net.node("ConvTranspose", x, w, *bias, strides=strides, pads=pads, group=group, **extra)


def _pool(net: Network, x: str, shape: Shape) -> list[str]:
    _, _, height, width = shape
    op = net.one_of("MaxPool", "AveragePool", "AveragePool")
    window = _window(net, height, width, net.one_of(4, 9, 14))
    if window["dilations"] != [1, 1] and (op == "AveragePool" or net.chance(70)):
        return []
    if any(pad >= kernel for pad, kernel in zip(window["pads"], window["kernel_shape"] * 2, strict=True)):
        return []
    more = {"count_include_pad": net.number(0, 1)} if op == "AveragePool" else {}
    if op == "AveragePool":
        window.pop("dilations")
    ceil_mode = net.chance(30) and not _starts_behind(window, (height, width))
    return net.node(op, x, ceil_mode=int(ceil_mode), **window, **more)


def _starts_behind(window: dict[str, list[int]], extents: tuple[int, int]) -> bool:
    """Whether ceil_mode would let a window start behind the map, in the padding.

    ONNX and onnxruntime leave it out; ONNX's shape inference, after which networks are built here, counts it.
    """
    kernels, strides, pads = window["kernel_shape"], window["strides"], window["pads"]
    dilations = window.get("dilations", [1, 1])
    for extent, kernel, stride, dilation, before, after in zip(
        extents, kernels, strides, dilations, pads[:2], pads[2:], strict=True
    ):
        last = -((extent + before + after - (kernel - 1) * dilation - 1) // -stride) * stride
        if last >= extent + before:
            return True
    return False


def _global(net: Network, x: str, shape: Shape) -> list[str]:
    op = net.one_of("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum")
    if op.startswith("Global"):
        return net.node(op, x)
    axes = net.constant(np.array(net.one_of([2, 3], [2, 3], [1], [3], [2])))
    return net.node(op, x, axes, keepdims=net.one_of(1, 1, 1, 0))


def _norm(net: Network, x: str, shape: Shape) -> list[str]:
    channels = shape[1]
    scale, bias = net.per_channel(channels, 0.3, 2), net.per_channel(channels, -1, 1)
    mean, variance = net.per_channel(channels, -0.5, 0.5), net.per_channel(channels, 0.3, 2)
    return net.node("BatchNormalization", x, scale, bias, mean, variance)


def _lrn(net: Network, x: str, shape: Shape) -> list[str]:
    return net.node("LRN", x, size=net.one_of(3, 5), alpha=net.one_of(1e-4, 0.1), beta=0.75)


def _binary(net: Network, x: str, shape: Shape) -> list[str]:
    """With another value of the same or a smaller shape, or with a constant; on either side."""
    op = net.one_of(*BINARY)
    fitting = [name for name in net.maps if net.shapes[name] == shape]
    narrow = [name for name in net.maps if net.shapes[name] == (1, *shape[1:2], 1, 1)]
    kind = net.number(0, 9)
    if kind < 5:
        other = net.one_of(*fitting)
    elif kind == 5 and narrow:
        other = net.one_of(*narrow)
    elif kind == 6 and len(shape) == 4 and shape[1] > 1:
        return _gate(net, x, shape)
    else:
        small = net.one_of(
            (), (1,), (1, *shape[1:2], *(1,) * (len(shape) - 2)), (*shape[1:2], *(1,) * (len(shape) - 2)), shape
        )
        other = net.constant(np.asarray(net.random.standard_normal(small), np.float32))
    if op == "Mul":
        net.rough = True
    return net.node(op, *net.one_of((x, other), (other, x)))


def _gate(net: Network, x: str, shape: Shape) -> list[str]:
    """Squeeze and excitation."""
    for pooled in net.node("GlobalAveragePool", x):
        for made in net.node("Conv", pooled, net.weights(shape[1], shape[1], 1, 1)):
            for gate in net.node(net.one_of("Sigmoid", "HardSigmoid"), made):
                return net.node("Mul", x, gate)
    return []


def _residual(net: Network, x: str, shape: Shape) -> list[str]:
    w = net.weights(shape[1], shape[1], 3, 3)
    for made in net.node("Conv", x, w, pads=[1, 1, 1, 1]):
        for total in net.node("Add", *net.one_of((x, made), (made, x))):
            return net.node("Relu", total) if net.chance(60) else [total]
    return []


def _limits(net: Network, low: float | None, high: float | None) -> list[str]:
    return ["" if each is None else net.constant(np.array(each, np.float32)) for each in (low, high)]


def _function(net: Network, x: str, shape: Shape) -> list[str]:
    op = net.one_of(*FUNCTIONS, "Clip", "PRelu", "Softmax")
    match op:
        case "Clip":
            low, high = net.one_of((0.0, 6.0), (-1.0, 1.0), (0.0, None), (None, 0.5), (-0.5, 2.0), (0.2, 0.9))
            limits = _limits(net, low, high)
            return net.node("Clip", x, *(limits if limits[1] else limits[:1]))
        case "PRelu":
            return _prelu(net, x, shape)
        case "Softmax":
            return net.node("Softmax", x, axis=1) if net.chance(20) else []
        case _:
            net.rough |= op in ("Exp", "Softplus")
            return net.node(op, x, **FUNCTIONS[op])


def _prelu(net: Network, x: str, shape: Shape) -> list[str]:
    slope = net.random.uniform(-0.5, 1.5, net.one_of((1,), (shape[1], *(1,) * (len(shape) - 2))))
    return net.node("PRelu", x, net.constant(slope.astype(np.float32)))


def _concat(net: Network, x: str, shape: Shape) -> list[str]:
    axis = net.one_of(1, 1, 1, 2, 3) if len(shape) == 4 else 1
    fitting = [
        name
        for name in net.maps
        if len(net.shapes[name]) == len(shape)
        and all(a == b for k, (a, b) in enumerate(zip(net.shapes[name], shape, strict=True)) if k != axis)
    ]
    others = [net.one_of(*fitting) for _ in range(net.number(1, 2))]
    given = [x, *others]
    net.random.shuffle(given)
    return net.node("Concat", *map(str, given), axis=axis)


def _split(net: Network, x: str, shape: Shape) -> list[str]:
    axis = net.one_of(1, 1, 2, 3) if len(shape) == 4 else 1
    if shape[axis] < 2:
        return []
    at = net.number(1, shape[axis] - 1)
    return net.node("Split", x, net.constant(np.array([at, shape[axis] - at])), outputs=2, axis=axis)


def _slice(net: Network, x: str, shape: Shape) -> list[str]:
    axes = [axis for axis in range(1, len(shape)) if net.chance(50)] or [1]
    starts = [net.number(0, shape[axis] - 1) for axis in axes]
    ends = [net.number(start + 1, shape[axis]) for axis, start in zip(axes, starts, strict=True)]
    steps = [net.one_of(1, 1, 1, 1, 2) for _ in axes]
    return net.node("Slice", x, *(net.constant(np.array(each)) for each in (starts, ends, axes, steps)))


def _pad(net: Network, x: str, shape: Shape) -> list[str]:
    around = [[net.number(0, 2) for _ in range(2)] for _ in range(2)]
    pads = [0, net.one_of(0, 0, 0, 1), *around[0], 0, net.one_of(0, 0, 0, 2), *around[1]]
    mode = net.one_of("constant", "constant", "edge", "reflect")
    if mode == "reflect" and any(pad >= extent for pad, extent in zip(pads, shape * 2, strict=True)):
        return []
    value = [net.constant(np.array(net.one_of(0, 0.5), np.float32))] if mode == "constant" else []
    return net.node("Pad", x, net.constant(np.array(pads)), *value, mode=mode)


def _reshape(net: Network, x: str, shape: Shape) -> list[str]:
    _, channels, height, width = shape
    wanted = net.one_of(
        (1, channels, width, height), (1, channels, height * width, 1), (1, channels * height, 1, width), (1, -1),
        (1, channels, -1), (1, height, width, channels), (1, channels * height * width, 1, 1),
    )  # fmt: skip
    return net.node("Reshape", x, net.constant(np.array(wanted)))


def _transpose(net: Network, x: str, shape: Shape) -> list[str]:
    return net.node("Transpose", x, perm=net.one_of([0, 1, 3, 2], [0, 2, 3, 1], [0, 3, 1, 2], [0, 2, 1, 3]))


def _flatten(net: Network, x: str, shape: Shape) -> list[str]:
    return net.node("Flatten", x)


def _shuffle(net: Network, x: str, shape: Shape) -> list[str]:
    """Channels of two groups in turn."""
    _, channels, height, width = shape
    if channels % 2:
        return []
    for parts in net.node("Reshape", x, net.constant(np.array([1, 2, channels // 2, height, width]))):
        for turned in net.node("Transpose", parts, perm=[0, 2, 1, 3, 4]):
            return net.node("Reshape", turned, net.constant(np.array(shape)))
    return []


def _matrix(net: Network, x: str, shape: Shape) -> list[str]:
    outputs = net.number(1, 40)
    if shape[-1] * outputs * prod(shape[:-1]) > PRODUCTS:
        return []
    return net.node("MatMul", x, net.weights(shape[-1], outputs))


def _gemm(net: Network, x: str, shape: Shape) -> list[str]:
    outputs = net.number(1, 40)
    turned = net.number(0, 1)
    w = net.weights(outputs, shape[1]) if turned else net.weights(shape[1], outputs)
    bias = [net.bias(outputs)] * net.chance(70)
    return net.node("Gemm", x, w, *bias, transB=turned, alpha=net.one_of(1.0, 1.0, 0.5))


def _resize(net: Network, x: str, shape: Shape) -> list[str]:
    mode = net.one_of("nearest", "linear")
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    return net.node("Resize", x, "", scales, mode=mode)


def _identity(net: Network, x: str, shape: Shape) -> list[str]:
    return net.node(net.one_of("Identity", "Dropout"), x)


STEPS: tuple[Step, ...] = (
    *[_convolution] * 8, *[_activated] * 8, *[_pool] * 4, *[_binary] * 5, *[_residual] * 2, *[_function] * 4,
    *[_concat] * 3, _transposed, _global, _norm, _lrn, _gate, _split, _slice, _pad, _reshape, _transpose, _flatten,
    _shuffle, _matrix, _resize, _identity,
)  # fmt: skip
FLAT: tuple[Step, ...] = (
    *[_gemm] * 5, _matrix, _binary, _binary, *[_function] * 2, _concat, _split, _slice, _norm, _identity,
)  # fmt: skip
