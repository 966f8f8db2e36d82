"""Random small networks in which every pass finds something, and much that it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from npuc.ir import Array, Attr, Graph, Node, TensorType
from npuc.ops import build, infer

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


class RandomNetwork:
    """Grows a network layer by layer; every tensor so far may be read again or be an output."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.types: dict[str, TensorType] = {}

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def shape(self, x: str) -> tuple[int, ...]:
        return self.types[x].shape

    def constant(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        self.types[name] = TensorType(value.shape, str(value.dtype))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        name = self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))
        return self.node("Neg", name) if self.chance(0.1) else name

    def scalar(self, value: float) -> str:
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1, 1))
        return self.constant(np.full(shapes[self.number(0, 2)], value, np.float32))

    def node(self, op: str, *inputs: str, **attrs: Attr) -> str:
        name = f"t{len(self.nodes)}"
        made = Node(op, inputs, (name,), attrs, f"n{len(self.nodes)}", (f"onnx{len(self.nodes)}",))
        absent = TensorType(())
        (self.types[name],) = infer(made, [self.types[each] if each else absent for each in inputs])
        self.nodes.append(made)
        return name

    def commuted(self, op: str, x: str, y: str) -> str:
        return self.node(op, y, x) if self.chance(0.5) else self.node(op, x, y)

    # layers of (N, C, H, W) or (N, C, L) maps

    def conv(self, x: str) -> str:
        C, *extents = self.shape(x)[1:]
        group = C if self.chance(0.3) else 1
        Co = C if group > 1 else self.number(1, 6)
        kernel = tuple(min(self.number(1, 3), extent) for extent in extents)
        rank = len(kernel)
        pads = tuple(self.number(0, 1) for _ in range(2 * rank)) if self.chance(0.6) else (0,) * 2 * rank
        strides = tuple(self.number(1, 2) for _ in kernel)
        w = self.normal(Co, C // group, *kernel, scale=(C // group * prod(kernel)) ** -0.5)
        inputs = [x, w] + ([self.normal(Co)] if self.chance(0.5) else [])
        return self.node("Conv", *inputs, kernel_shape=kernel, strides=strides, pads=pads, group=group)

    def conv_transpose(self, x: str) -> str:
        C, rank = self.shape(x)[1], len(self.shape(x)) - 2
        kernel = (self.number(1, 3),) * rank
        w = self.normal(C, self.number(1, 4), *kernel, scale=C**-0.5)
        return self.node("ConvTranspose", x, w, kernel_shape=kernel, strides=(2,) * rank, pads=(0,) * 2 * rank)

    def batch_norm(self, x: str) -> str:
        C = self.shape(x)[1]
        var = self.constant(self.random.uniform(0.5, 2, C).astype(np.float32))
        return self.node("BatchNormalization", x, *(self.normal(C) for _ in range(3)), var, epsilon=1e-3)

    def arithmetic(self, x: str) -> str:
        rank, C = len(self.shape(x)), self.shape(x)[1]
        op = ("Add", "Sub", "Mul", "Div")[self.number(0, 3)]
        if self.chance(0.3):
            return self.node(op, x, self.scalar(2.5))
        shape = (1, C, *(1,) * (rank - 2)) if self.chance(0.7) else self.shape(x)
        value = self.constant(self.random.uniform(0.5, 2, shape).astype(np.float32))
        return self.commuted(op, x, value) if op != "Div" else self.node(op, x, value)

    def activation(self, x: str) -> str:
        kind = self.number(0, 9)
        if kind < 3:
            return self.node("Relu", x)
        if kind == 3:
            return self.node("Clip", x, min=0.0, max=6.0) if self.chance(0.5) else self.node("Clip", x, min=-1.0)
        if kind == 4:
            return self.node("Min", self.node("Relu", x), self.scalar(6))
        if kind == 5:
            return self.commuted("Mul", x, self.node("Sigmoid", x))
        if kind == 6:
            limited = self.node("Clip", self.commuted("Add", x, self.scalar(3)), min=0.0, max=6.0)
            if self.chance(0.5):
                return self.commuted("Mul", x, self.node("Div", limited, self.scalar(6)))
            return self.node("Div", self.commuted("Mul", x, limited), self.scalar(6))
        if kind == 7:
            scaled = self.node("Div", x, self.scalar(2**0.5))
            one = self.commuted("Add", self.node("Erf", scaled), self.scalar(1))
            return self.commuted("Mul", self.commuted("Mul", x, one), self.scalar(0.5))
        if kind == 8:
            return self.commuted("Max", x, self.node("Mul", x, self.scalar(0.1)))
        return self.node("HardSigmoid", x, alpha=0.2, beta=0.5)

    def pool(self, x: str) -> str:
        extents = self.shape(x)[2:]
        whole = self.chance(0.2)
        kernel = tuple(extent if whole else min(extent, self.number(1, 3)) for extent in extents)
        op = "MaxPool" if self.chance(0.5) else "AveragePool"
        pads = tuple(self.number(0, k - 1) if not whole and self.chance(0.3) else 0 for k in kernel * 2)
        attrs: dict[str, Attr] = {"count_include_pad": self.number(0, 1)} if op == "AveragePool" else {}
        return self.node(
            op, x, kernel_shape=kernel, strides=(self.number(1, 2),) * len(kernel), pads=pads, **attrs
        )

    def pad(self, x: str) -> str:
        rank = len(self.shape(x))
        pads = [0, 0, *(self.number(0, 1) for _ in range(rank - 2))] * 2
        value = (0.0, float("-inf"), 1.0)[self.number(0, 2)] if self.chance(0.3) else 0.0
        if value == float("-inf"):
            kernel = (2,) * (rank - 2)
            padded = self.node("Pad", x, pads=tuple(pads), value=value)
            fits = all(extent >= 2 for extent in self.shape(padded)[2:])
            return self.node("MaxPool", padded, kernel_shape=kernel) if fits else x
        padded = self.node("Pad", x, pads=tuple(pads), value=value)
        return self.conv(padded) if self.chance(0.5) else self.pool(padded)

    def residual(self, x: str) -> str:
        if self.chance(0.5):
            return self.commuted("Add", x, self.conv_1x1(x))
        same = [
            name for name, found in self.types.items() if found == self.types[x] and name not in self.constants
        ]
        return self.node("Add", x, same[self.number(0, len(same) - 1)])

    def concat(self, x: str) -> str:
        return self.node("Concat", x, self.node("Relu", x) if self.chance(0.5) else x, axis=1)

    def twice(self, x: str) -> str:
        """The same computation two times."""
        return self.node("Add", *(self.node("Softplus", self.node("Tanh", x)) for _ in range(2)))

    def squeeze_excite(self, x: str) -> str:
        pooled = self.node("GlobalAveragePool", x)
        return self.commuted("Mul", x, self.node("Sigmoid", self.conv_1x1(pooled)))

    def conv_1x1(self, x: str) -> str:
        C, rank = self.shape(x)[1], len(self.shape(x)) - 2
        return self.node("Conv", x, self.normal(C, C, *(1,) * rank, scale=C**-0.5), kernel_shape=(1,) * rank)

    def mean(self, x: str) -> str:
        rank = len(self.shape(x))
        axes = tuple(range(2, rank)) if self.chance(0.5) else (2,)
        return self.node("ReduceMean" if self.chance(0.7) else "ReduceMax", x, axes=axes, keepdims=1)

    def softmax(self, x: str, axis: int) -> str:
        """As models spell it in several nodes."""
        shifted = self.node("Sub", x, self.node("ReduceMax", x, axes=(axis,), keepdims=1))
        powers = self.node("Exp", shifted)
        return self.node("Div", powers, self.node("ReduceSum", powers, axes=(axis,), keepdims=1))

    def no_op(self, x: str) -> str:
        kind = self.number(0, 3)
        if kind == 0:
            return self.node("Identity", x)
        if kind == 1:
            return self.node("Reshape", x, shape=self.shape(x))
        if kind == 2:
            return self.node("Transpose", x, perm=tuple(range(len(self.shape(x)))))
        return self.node("Reshape", self.node("Reshape", x, shape=(prod(self.shape(x)),)), shape=self.shape(x))

    def channels_last(self, x: str) -> str:
        """Some layers between Transposes, as TensorFlow's exporter writes them."""
        if len(self.shape(x)) != 4:
            return x
        y = self.node("Transpose", x, perm=NHWC)
        C = self.shape(y)[-1]
        for _ in range(self.number(0, 3)):
            kind = self.number(0, 6)
            if kind == 0:
                y = self.node("Add", y, self.normal(C))
            elif kind == 1:
                y = self.activation(y)
            elif kind == 2:
                y = self.node("Mul", y, self.node("ReduceMean", y, axes=(1, 2), keepdims=1))
            elif kind == 3:
                y = self.node("Concat", y, y, axis=3)
                C *= 2
            elif kind == 4:
                y = self.node("Pad", y, pads=(0, 1, 0, 0, 0, 0, 1, 0), value=0.0)
            elif kind == 5 and C > 1:
                y = self.node("Slice", y, starts=(1,), ends=(C,), axes=(3,), steps=(1,))
                C -= 1
            else:
                y = self.softmax(y, 3)
        return self.node("Transpose", y, perm=NCHW)

    def along_one_axis(self, x: str) -> str:
        """Some layers on (N, C, L)."""
        if len(self.shape(x)) != 4:
            return x
        N, C, H, W = self.shape(x)
        y = self.node("Reshape", x, shape=(N, C, H * W))
        for _ in range(self.number(1, 4)):
            y = self.layer(y)
        return self.node("Reshape", y, shape=(*self.shape(y)[:2], 1, self.shape(y)[2]))

    def layer(self, x: str) -> str:
        layers: tuple[Callable[[str], str], ...] = (
            *(self.conv, self.conv, self.conv, self.batch_norm, self.batch_norm, self.activation, self.activation),
            *(self.pool, self.pad, self.residual, self.concat, self.squeeze_excite, self.mean, self.no_op),
            *(self.arithmetic, self.arithmetic, self.conv_transpose, self.channels_last, self.channels_last),
            *(self.along_one_axis, self.twice),
        )
        if prod(self.shape(x)) > 3000:
            return self.node("GlobalAveragePool", x)
        return layers[self.number(0, len(layers) - 1)](x)

    def head(self, x: str) -> str:
        if len(self.shape(x)) == 4 and self.chance(0.5):
            x = self.node("Transpose", x, perm=NHWC)
            if self.chance(0.3):
                x = self.node("ReduceMean", x, axes=(1, 2), keepdims=0)
        N = self.shape(x)[0]
        x = self.node("Reshape", x, shape=(N, prod(self.shape(x)[1:])))
        if self.chance(0.3):
            x = self.node("Relu", x)
        K = self.shape(x)[1]
        if self.chance(0.5):
            x = self.node("MatMul", x, self.normal(K, 4, scale=K**-0.5))
            x = self.commuted("Add", x, self.normal(4))
        else:
            x = self.node("Gemm", x, self.normal(4, K, scale=K**-0.5), self.normal(4))
        return self.node("Relu", x) if self.chance(0.3) else x


def random_graph(seed: int) -> Graph:
    """A network of 5 to 15 layers with one or two outputs; the same one for the same seed."""
    net = RandomNetwork(seed)
    shape = (net.number(1, 2), net.number(1, 4), net.number(3, 8), net.number(3, 8))
    if net.chance(0.3):
        shape = tuple(shape[axis] for axis in NHWC)
    net.types["x"] = TensorType(shape)
    x = net.node("Transpose", "x", perm=NCHW) if net.chance(0.3) else "x"
    for _ in range(net.number(4, 14)):
        x = net.layer(x)
    if net.chance(0.5):
        x = net.head(x)
    if x == "x":
        x = net.node("Relu", x)
    outputs = [x]
    if net.chance(0.4):
        outputs.append(net.nodes[net.number(0, len(net.nodes) - 1)].output)
    return build(f"random{seed}", net.nodes, {"x": TensorType(shape)}, list(dict.fromkeys(outputs)), net.constants)
