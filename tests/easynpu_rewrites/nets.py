"""Small networks as ONNX text, each around one operator that EasyNPU has no word for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from tests.onnx_models import parse

Values = Mapping[str, "tuple[int, ...] | np.ndarray"]


@dataclass(frozen=True)
class Net:
    """Nodes between an input x and an output y; constants are arrays, or the shape of random ones."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    nodes: str
    constants: Values = field(default_factory=dict[str, "tuple[int, ...] | np.ndarray"])

    def model(self) -> onnx.ModelProto:
        """The ONNX model; weights are scaled so that no layer saturates."""
        shapes = [", ".join(map(str, shape)) for shape in (self.x, self.y)]
        text = f"g (float[{shapes[0]}] x) => (float[{shapes[1]}] y) {{{self.nodes}}}"
        model = parse(text)
        random = np.random.default_rng(1)
        for name, given in self.constants.items():
            value = given if isinstance(given, np.ndarray) else _drawn(random, given)
            model.graph.initializer.append(numpy_helper.from_array(value, name))
        return model


def _drawn(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Vectors around 1, which do for variances; kernels with the variance 2 / fan_in."""
    if len(shape) == 1:
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    return (random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


NORM = {"g": (8,), "b": (8,), "m": (8,), "v": (8,)}
SHUFFLE = """
    r = Reshape (a, five)
    t = Transpose <perm = [0, 2, 1, 3, 4]> (r)
    s = Reshape (t, four)
"""

NETS: Mapping[str, Net] = {
    "transposed, stride 2": Net(
        (1, 3, 8, 8),
        (1, 5, 16, 16),
        "a = Conv (x, w) c = Relu (a) y = ConvTranspose <strides = [2, 2]> (c, k, l)",
        {"w": (16, 3, 1, 1), "k": (16, 5, 2, 2), "l": (5,)},
    ),
    "transposed, overlapping, odd, with ReLU": Net(
        (1, 4, 7, 6),
        (1, 6, 13, 11),
        """a = Conv (x, w)
           c = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (a, k, l)
           y = Relu (c)""",
        {"w": (16, 4, 1, 1), "k": (16, 6, 3, 3), "l": (6,)},
    ),
    "transposed, depthwise, stride 3, output padding": Net(
        (1, 8, 5, 5),
        (1, 3, 17, 17),
        """a = Relu (x)
           c = ConvTranspose <strides = [3, 3], output_padding = [1, 1], group = 8> (a, k)
           y = Conv (c, w)""",
        {"w": (3, 8, 1, 1), "k": (8, 1, 4, 4)},
    ),
    "transposed, unequal strides, groups": Net(
        (1, 8, 4, 9),
        (1, 6, 8, 9),
        """a = Relu (x)
           c = ConvTranspose <strides = [2, 1], pads = [1, 1, 1, 1], group = 2> (a, k)
           y = Conv (c, w)""",
        {"w": (6, 12, 1, 1), "k": (8, 6, 4, 3)},
    ),
    "transposed to one channel": Net(
        (1, 24, 6, 6),
        (1, 1, 12, 12),
        """a = Relu (x) c = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (a, k) y = Tanh (c)""",
        {"k": (24, 1, 4, 4)},
    ),
    "transposed, stride 1": Net(
        (1, 4, 6, 6), (1, 3, 8, 8), "a = Relu (x) y = ConvTranspose (a, k)", {"k": (4, 3, 3, 3)}
    ),
    "transposed from one pixel": Net(
        (1, 20, 1, 1),
        (1, 2, 8, 8),
        """a = ConvTranspose (x, k) c = Relu (a)
           y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (c, l)""",
        {"k": (20, 16, 4, 4), "l": (16, 2, 4, 4)},
    ),
    "resized": Net(
        (1, 3, 6, 5),
        (1, 2, 18, 15),
        """a = Conv (x, w)
           c = Resize <mode = "nearest"> (a, , scales)
           y = Conv (c, k)""",
        {"w": (16, 3, 1, 1), "k": (2, 16, 1, 1), "scales": np.float32([1, 1, 3, 3])},
    ),
    "resized and joined": Net(
        (1, 4, 8, 8),
        (1, 4, 8, 8),
        """a = Conv (x, w) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a) q = Conv (p, k)
           u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
               (q, , scales)
           j = Concat <axis = 1> (a, u)
           y = Conv (j, l)""",
        {"w": (16, 4, 1, 1), "k": (32, 16, 1, 1), "l": (4, 48, 1, 1), "scales": np.float32([1, 1, 2, 2])},
    ),
    "averages at borders": Net(
        (1, 6, 9, 8),
        (1, 4, 9, 8),
        """a = Conv (x, w) p = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a) y = Conv (p, k)""",
        {"w": (20, 6, 1, 1), "k": (4, 20, 1, 1)},
    ),
    "averages with ceil_mode": Net(
        (1, 6, 9, 7),
        (1, 6, 5, 4),
        """a = Relu (x)
           y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 0], ceil_mode = 1> (a)""",
    ),
    "maximum of a large window": Net(
        (1, 4, 20, 20),
        (1, 4, 20, 20),
        """a = Conv (x, w) p = MaxPool <kernel_shape = [9, 9], pads = [4, 4, 4, 4]> (a) y = Conv (p, k)""",
        {"w": (16, 4, 1, 1), "k": (4, 16, 1, 1)},
    ),
    "maximum of all": Net(
        (1, 4, 12, 14), (1, 4, 1, 1), "a = Conv (x, w) y = GlobalMaxPool (a)", {"w": (4, 4, 1, 1)}
    ),
    "maximum of a long row": Net(
        (1, 4, 1, 150), (1, 4, 1, 1), "a = Conv (x, w) y = GlobalMaxPool (a)", {"w": (4, 4, 1, 1)}
    ),
    "batch normalisation before a padded convolution": Net(
        (1, 8, 6, 6),
        (1, 8, 6, 6),
        """a = BatchNormalization (x, g, b, m, v) c = Relu (a)
           y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c, w)""",
        {**NORM, "w": (8, 8, 3, 3)},
    ),
    "batch normalisation of a row": Net(
        (1, 8, 6, 6),
        (1, 5),
        """a = Relu (x) p = GlobalAveragePool (a) f = Flatten (p) s = Sigmoid (f)
           n = BatchNormalization (s, g, b, m, v) t = Tanh (n) y = Gemm <transB = 1> (t, w)""",
        {**NORM, "w": (5, 8)},
    ),
    "sub-spectral normalisation": Net(
        (1, 2, 12, 5),
        (1, 3, 12, 5),
        """a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 2> (x, w)
           r = Reshape (a, bands) n = BatchNormalization (r, g, b, m, v) s = Reshape (n, image)
           t = Relu (s) y = Conv (t, k)""",
        {
            **NORM, "w": (2, 1, 3, 3), "k": (3, 2, 1, 1),
            "bands": np.array([1, 8, 3, 5]), "image": np.array([1, 2, 12, 5]),
        },
    ),
    "shuffled channels": Net(
        (1, 24, 4, 5),
        (1, 24, 4, 5),
        f"""a = Conv <group = 3> (x, w) {SHUFFLE}
            y = Conv <group = 24, kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s, k)""",
        {
            "w": (24, 8, 1, 1), "k": (24, 1, 3, 3),
            "five": np.array([1, 3, 8, 4, 5]), "four": np.array([1, 24, 4, 5]),
        },
    ),
    "a unit of shufflenet": Net(
        (1, 12, 6, 6),
        (1, 12, 6, 6),
        f"""i = Relu (x) l, k = Split <axis = 1> (i, halves)
            d = Conv (k, w) e = Relu (d) a = Concat <axis = 1> (l, e) {SHUFFLE}
            n, o = Split <axis = 1> (s, halves) p = Conv (o, v) q = Relu (p) y = Concat <axis = 1> (n, q)""",
        {
            "w": (6, 6, 1, 1), "v": (6, 6, 1, 1), "halves": np.array([6, 6]),
            "five": np.array([1, 2, 6, 6, 6]), "four": np.array([1, 12, 6, 6]),
        },
    ),
    "channels gathered": Net(
        (1, 20, 6, 6),
        (1, 20, 6, 6),
        "a = Sigmoid (x) b = Gather <axis = 1> (a, order) c = Conv <group = 20> (b, w) y = Tanh (c)",
        {"w": (20, 1, 1, 1), "order": np.random.default_rng(0).permutation(20)},
    ),
    "every second row and column": Net(
        (1, 8, 7, 8),
        (1, 8, 4, 4),
        """a = Conv (x, w) s = Slice (a, from, to, axes, steps) t = Slice (a, zero, to, axes, steps)
           d = Sub (s, t) y = Tanh (d)""",
        {
            "w": (8, 8, 1, 1), "from": np.array([0, 1]), "zero": np.array([0, 0]), "to": np.array([7, 8]),
            "axes": np.array([2, 3]), "steps": np.array([2, 2]),
        },
    ),
    "several results per channel, before a convolution": Net(
        (1, 16, 7, 6),
        (1, 8, 7, 6),
        "c = Conv <group = 16, pads = [1, 1, 1, 1]> (x, w, b) r = Relu (c) y = Conv (r, v)",
        {"w": (48, 1, 3, 3), "b": (48,), "v": (8, 48, 1, 1)},
    ),
    "several results per channel, before a sum": Net(
        (1, 16, 7, 6),
        (1, 32, 7, 6),
        "c = Conv <group = 16, pads = [1, 1, 1, 1]> (x, w) d = Conv (x, v) y = Add (c, d)",
        {"w": (32, 1, 3, 3), "v": (32, 16, 1, 1)},
    ),
    "an unaligned slice": Net(
        (1, 24, 6, 6),
        (1, 24, 6, 6),
        "a = Relu (x) s = Slice (a, from, to, one) t = Sigmoid (s) j = Concat <axis = 1> (t, a) y = Conv (j, w)",
        {"w": (24, 32, 1, 1), "from": np.array([5]), "to": np.array([13]), "one": np.array([1])},
    ),
    "a difference": Net(
        (1, 8, 6, 6),
        (1, 8, 6, 6),
        """a = Conv (x, w) c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k)
           d = Sub (a, c) y = Relu (d)""",
        {"w": (8, 8, 1, 1), "k": (8, 8, 3, 3)},
    ),
    "a difference from the mean": Net(
        (1, 8, 6, 6),
        (1, 8, 6, 6),
        "a = Conv (x, w) m = GlobalAveragePool (a) d = Sub (a, m) y = Conv (d, k)",
        {"w": (8, 8, 1, 1), "k": (8, 8, 1, 1)},
    ),
}  # fmt: skip
