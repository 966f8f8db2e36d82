"""onnxruntime convolutions in place of the PE array's: from int8 words to requantised words or to sums.

Maps have the layout of the DTCMs, channels last. A pointwise convolution is then a matrix product; any other is
transposed to planes and back, as onnxruntime's Conv requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.reference import session
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.timing import is_dense, kernel_extent

Step = tuple[str, tuple[str, ...], Mapping[str, Any]]
"""An ONNX operator applied to the previous result: its name, constants and attributes."""
NOTHING: Mapping[str, tuple[int, ...]] = {}


def padding(layer: Layer) -> tuple[int, int, int, int]:
    """Rows and columns of padding: top and left as in the word, bottom and right as implied by Ho and Wo."""
    bottom = (layer.Ho - 1) * layer.Sh + kernel_extent(layer.Hk, layer.Dh) - layer.Ph - layer.Hi
    right = (layer.Wo - 1) * layer.Sw + kernel_extent(layer.Wk, layer.Dw) - layer.Pw - layer.Wi
    return layer.Ph, layer.Pw, bottom, right


def reached(layer: Layer) -> tuple[int, int]:
    """Rows and columns of the map that windows reach; 0 where all windows are in the padding."""
    _, _, bottom, right = padding(layer)
    return max(layer.Hi + min(bottom, 0), 0), max(layer.Wi + min(right, 0), 0)


def kept(layer: Layer) -> tuple[int, int]:
    """Rows and columns for an ONNX operator, which needs at least one: those that windows reach, or the first."""
    height, width = reached(layer)
    return max(height, 1), max(width, 1)


def convolution(layer: Layer, w: Array, bias: Array | None, highest: int | None, *, few_runs: bool = False) -> Any:
    """A session from `arranged` maps int8 of several tiles to results in the same arrangement.

    w: (tiles, Co, Ci or 1, Hk, Wk) float32; bias: (tiles, Co) float32. Results are uint8, saturated to 0..highest
    and rounded down, or float32 sums where highest is None. few_runs: share the session between layers that differ
    only in values.
    """
    tiles, window = len(w), () if is_product(layer) else tuple(window_attributes(layer, len(w)).items())
    if window:
        weights = {"w": w.reshape(-1, *w.shape[2:])} | ({} if bias is None else {"b": bias.ravel()})
    else:
        weights = {"w": w[..., 0, 0].transpose(0, 2, 1)} | ({} if bias is None else {"b": bias[:, None]})
        weights = {name: each[0] for name, each in weights.items()} if tiles == 1 else weights
    weights = {name: np.ascontiguousarray(each) for name, each in weights.items()}
    shape = _Shape(tiles, tuple(each.shape for each in (w, *([] if bias is None else [bias]))), window, highest)
    if not few_runs:
        return session(_model(shape, weights))
    return _Fed(_shared(shape, tuple((name, each.shape) for name, each in weights.items())), weights)


def arranged(layer: Layer, x: Array, tiles: int) -> Array:
    """The reached part of maps (tiles * samples, H, W, C), as a session takes it.

    That is (tiles, rows, C) for matrix products, (rows, C) for those of one tile, and otherwise
    (samples, H, W, tiles * C).
    """
    height, width = reached(layer)
    x = np.ascontiguousarray(x[:, :height, :width])
    if is_product(layer):
        return x.reshape(-1, layer.Ci) if tiles == 1 else x.reshape(tiles, -1, layer.Ci)
    return side_by_side(x, tiles)


def as_maps(layer: Layer, y: Array, tiles: int) -> Array:
    """A session's results as maps (tiles * samples, Ho, Wo, Co)."""
    if is_product(layer):
        return y.reshape(-1, layer.Ho, layer.Wo, layer.Co)
    if tiles == 1:
        return y
    apart = y.reshape(*y.shape[:3], tiles, layer.Co).transpose(3, 0, 1, 2, 4)
    return np.ascontiguousarray(apart).reshape(-1, *apart.shape[2:])


def side_by_side(x: Array, tiles: int) -> Array:
    """Maps (tiles * samples, H, W, C) as (samples, H, W, tiles * C)."""
    if tiles == 1:
        return x
    apart = x.reshape(tiles, len(x) // tiles, *x.shape[1:]).transpose(1, 2, 3, 0, 4)
    return np.ascontiguousarray(apart).reshape(*apart.shape[:3], apart.shape[3] * apart.shape[4])


@frozen
class _Shape:
    """What a session computes, without the values: the attributes of the ONNX Conv."""

    tiles: int
    weights: tuple[tuple[int, ...], ...]
    window: tuple[tuple[str, Any], ...]
    """Empty for a matrix product."""
    highest: int | None


@frozen
class _Fed:
    """A session with its weights."""

    session: Any
    weights: Mapping[str, Array]

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """Runs as onnxruntime's session does."""
        return self.session.run(outputs, {**feeds, **self.weights})


@lru_cache(maxsize=256)
def _shared(shape: _Shape, weights: tuple[tuple[str, tuple[int, ...]], ...]) -> Any:
    """A session whose weights, of these extents, are inputs of every run."""
    return session(_model(shape, {}, dict(weights)), few_runs=True)


def _model(shape: _Shape, weights: Mapping[str, Array], taken: Mapping[str, tuple[int, ...]] = NOTHING) -> Any:
    """The ONNX model; taken: the extents of weights that are inputs."""
    from onnx import TensorProto, helper, numpy_helper

    constants, given = dict(weights), tuple(weights or taken)
    to_float: Step = ("Cast", (), {"to": TensorProto.FLOAT})
    limits, to_integer = list[Step](), list[Step]()
    if shape.highest is not None:
        constants |= {"low": np.float32(0), "high": np.float32(shape.highest)}
        limits, to_integer = [("Clip", ("low", "high"), {})], [("Cast", (), {"to": TensorProto.UINT8})]
    if shape.window:  # onnxruntime makes one of a Conv and the transpositions beside it
        planes, lines = ([("Transpose", (), {"perm": perm})] for perm in ([0, 3, 1, 2], [0, 2, 3, 1]))
        steps: list[Step] = [to_float, *planes, ("Conv", given, dict(shape.window)), *limits, *lines, *to_integer]
    elif shape.tiles == 1:
        steps = [to_float, ("Gemm", given, {}), *limits, *to_integer]
    else:
        sums: list[Step] = [("MatMul", given[:1], {}), *(("Add", (name,), {}) for name in given[1:])]
        steps = [to_float, *sums, *limits, *to_integer]
    names = ["x", *(f"t{position}" for position in range(1, len(steps))), "y"]
    nodes = [
        helper.make_node(op, [before, *given], [after], **attrs)
        for (op, given, attrs), before, after in zip(steps, names, names[1:], strict=False)
    ]
    element = TensorProto.UINT8 if to_integer else TensorProto.FLOAT
    rank = 4 if shape.window else 2 if shape.tiles == 1 else 3
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT8, [None] * rank)]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, each) for name, each in taken.items()]
    outputs = [helper.make_tensor_value_info("y", element, [None] * rank)]
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "layer", inputs, outputs, values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def is_product(layer: Layer) -> bool:
    """Whether the word is a matrix product: an output per pixel, of all channels of that pixel."""
    return is_dense(layer) and (layer.Hk, layer.Wk, layer.Sh, layer.Sw) == (1, 1, 1, 1) and not any(padding(layer))


def window_attributes(layer: Layer, tiles: int) -> dict[str, Any]:
    """The attributes of the ONNX Conv of the rows and columns that are `kept`, of that many tiles in groups.

    Where all windows are in the padding, a negative number of them is added after the first one.
    """
    pads, extents = padding(layer), (layer.Hi, layer.Wi)
    after = (pad + extent - left for pad, extent, left in zip(pads[2:], extents, kept(layer), strict=True))
    return {
        "strides": (layer.Sh, layer.Sw),
        "pads": (*pads[:2], *after),
        "dilations": (layer.Dh + 1, layer.Dw + 1),
        "group": tiles * (1 if is_dense(layer) else layer.Co),
    }
