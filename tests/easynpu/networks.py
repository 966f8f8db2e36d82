"""Random networks of what EasyNPU runs, on maps that do not fit small machines."""

from __future__ import annotations

from math import prod

import numpy as np

from npuc.ir import Array, Attr, Graph, Node, TensorType
from npuc.ops import build, infer


class Network:
    """Grows a network of (1, C, H, W) maps; every tensor so far may be read again."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        shape = (1, self.number(1, 40), self.number(5, 26), self.number(5, 26))
        self.types: dict[str, TensorType] = {"x": TensorType(shape)}
        self.maps = ["x"]

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def one_of(self, *values: int) -> int:
        return values[self.number(0, len(values) - 1)]

    def normal(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        fan = max(prod(shape[1:]), 1)
        self.constants[name] = (self.random.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)
        self.types[name] = TensorType(shape)
        return name

    def node(self, op: str, *inputs: str, **attrs: Attr) -> str:
        name = f"t{len(self.nodes)}"
        made = Node(op, inputs, (name,), attrs, f"n{len(self.nodes)}", (f"n{len(self.nodes)}",))
        (self.types[name],) = infer(made, [self.types[each] for each in inputs])
        self.nodes.append(made)
        return name

    def conv(self, x: str, outputs: int | None = None) -> str:
        _, channels, height, width = self.types[x].shape
        high, wide = min(self.one_of(1, 3, 3, 5, 9), height), min(self.one_of(1, 3, 3, 2, 7), width)
        depthwise = outputs is None and self.number(0, 3) == 0
        outputs = channels if depthwise else outputs or self.number(1, 50)
        stride = self.one_of(1, 1, 2) if min(height, width) > 6 else 1
        pads = tuple(self.number(0, k // 2) for k in (high, wide, high, wide))
        w = self.normal(outputs, 1 if depthwise else channels, high, wide)
        group = channels if depthwise else 1
        return self.node("Conv", x, w, self.normal(outputs), strides=(stride, stride), pads=pads, group=group)

    def grow(self) -> None:
        x = self.maps[-self.number(1, min(3, len(self.maps)))]
        _, channels, height, width = self.types[x].shape
        match self.number(0, 12):
            case 0 if min(height, width) >= 3:
                k = self.one_of(2, 3)
                y = self.node("MaxPool", x, kernel_shape=(k, k), strides=(2, 2), pads=(0, 0, k // 2, k // 2))
            case 1 if min(height, width) >= 3:
                y = self.node("AveragePool", x, kernel_shape=(2, 3), strides=(self.one_of(1, 2), 1))
            case 2:
                y = self.node("Add", x, self.same(self.conv(x, channels), x))
            case 3:
                gate = self.node("Sigmoid", self.node("GlobalAveragePool", x))
                y = self.node("Mul", x, gate)
            case 4:
                y = self.node("Concat", x, self.same(self.conv(x), x), axis=1)
            case 5:
                y = self.node(("Relu", "HardSwish", "Tanh")[self.number(0, 2)], x)
            case 6 if max(height, width) < 30:
                w = self.normal(channels, outputs := self.number(1, 20), k := self.one_of(2, 3, 4), k)
                y = self.node("ConvTranspose", x, w, self.normal(outputs), strides=(2, 2), pads=(0, 0, 0, 0))
            case 7 if max(height, width) < 30:
                size = (1, channels, 2 * height, 2 * width)
                y = self.node(
                    "Resize",
                    x,
                    mode="nearest",
                    scales=(1.0, 1.0, 2.0, 2.0),
                    sizes=size,
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor",
                )
            case 8 if height > 4 and channels > 20:
                y = self.node("Slice", x, axes=(1, 2), starts=(16, 1), ends=(channels, height - 1), steps=(1, 1))
            case _:
                y = self.conv(x)
                if self.number(0, 1):
                    y = self.node("Relu", y)
        self.maps.append(y)

    def same(self, y: str, like: str) -> str:
        """A convolution of another size is replaced by a 1x1 one that keeps rows and columns."""
        if self.types[y].shape[2:] == self.types[like].shape[2:]:
            return y
        outputs, channels = self.types[y].shape[1], self.types[like].shape[1]
        return self.node("Conv", like, self.normal(outputs, channels, 1, 1))

    def graph(self) -> Graph:
        for _ in range(self.number(2, 7)):
            self.grow()
        outputs = [self.maps[-1]] + [name for name in self.maps[1:-1] if self.number(0, 7) == 0]
        return build("random", self.nodes, {"x": self.types["x"]}, list(dict.fromkeys(outputs)), self.constants)


class Residual(Network):
    """Grows a network of residual blocks, with or without a projection on the short cut."""

    def grow(self) -> None:
        x, stride = self.maps[-1], self.one_of(1, 1, 2)
        channels = self.types[x].shape[1]
        outputs = channels if stride == 1 and self.number(0, 2) else self.number(1, 40)
        y = self.block(x, outputs, stride)
        for _ in range(self.number(0, 2)):
            y = self.block(y, outputs, 1)
        same = self.types[x].shape == self.types[y].shape
        short = x if same else self.window(x, outputs, self.one_of(1, 1, 3), stride)
        operands = (y, short) if self.number(0, 1) else (short, y)
        total = self.node("Add", *operands)
        self.maps.append(self.node("Relu", total) if self.number(0, 1) else total)

    def block(self, x: str, outputs: int, stride: int) -> str:
        y = self.window(x, outputs, self.one_of(1, 3, 3, 5), stride)
        return self.node(("Relu", "Relu", "HardSwish")[self.number(0, 2)], y) if self.number(0, 2) else y

    def window(self, x: str, outputs: int, kernel: int, stride: int) -> str:
        """A convolution with as much padding as its kernel reaches, so that only the stride divides the map."""
        w, pads = self.normal(outputs, self.types[x].shape[1], kernel, kernel), (kernel // 2,) * 4
        return self.node("Conv", x, w, self.normal(outputs), strides=(stride, stride), pads=pads, group=1)


class Blocks(Network):
    """Grows inverted residual blocks with squeeze and excitation, wide maps between narrow ones."""

    def grow(self) -> None:
        x = y = self.maps[-1]
        channels = self.types[x].shape[1]
        if self.number(0, 3):
            y = self.activated(self.point(y, self.number(10, 130)))
        y = self.activated(self.depthwise(y))
        if self.number(0, 3):
            gate = self.node("Relu", self.point(self.node("GlobalAveragePool", y), self.number(2, 40)))
            y = self.node("Mul", y, self.node("Sigmoid", self.point(gate, self.types[y].shape[1])))
        y = self.point(y, channels if self.number(0, 1) else self.number(1, 60))
        same = self.types[y].shape == self.types[x].shape
        self.maps.append(self.node("Add", x, y) if same and self.number(0, 3) else self.activated(y))

    def activated(self, x: str) -> str:
        op = ("", "Relu", "HardSwish", "Tanh")[self.number(0, 3)]
        return self.node(op, x) if op else x

    def point(self, x: str, outputs: int) -> str:
        return self.node("Conv", x, self.normal(outputs, self.types[x].shape[1], 1, 1), self.normal(outputs))

    def depthwise(self, x: str) -> str:
        _, channels, height, width = self.types[x].shape
        high, wide = (min(self.one_of(3, 3, 5), extent) for extent in (height, width))
        attrs = {"strides": (self.one_of(1, 1, 2), 1), "pads": (high // 2, wide // 2) * 2, "group": channels}
        return self.node("Conv", x, self.normal(channels, 1, high, wide), self.normal(channels), **attrs)


def random_machine(seed: int) -> dict[str, int]:
    """Parameters of a machine that is often too small for whole maps."""
    random = np.random.default_rng(seed)
    words = {key: int(random.choice([120, 300, 700, 1280, 4000])) for key in ("fmap_words", "skip_words")}
    return {
        **words,
        "weight_words": int(random.choice([600, 1536, 6000])),
        "itcm_words": int(random.choice([24, 256])),
    }
