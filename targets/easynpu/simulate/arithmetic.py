"""The PE array's arithmetic on whole layers: exact integers, with onnxruntime's float32 where that is exact.

An accumulator below 2^24 is exact in float32, and so is its product with 2^-n. Convolutions therefore run in
onnxruntime with weights scaled by 2^-n and a bias that is scaled and raised by 1/2, which leaves only floor and
saturation to do. Without ReLU results are also raised by 128, so that they are never negative after saturation and
the floor is a cast to uint8. Where the bound of a channel does not allow that, the input channels are split and
the parts are summed as int64.

Maps have the layout of the DTCMs, channels last. A pointwise convolution is then a matrix product; any other is
transposed to planes and back, as onnxruntime's Conv requires.
Source: easynpu, PE; rounding and saturation as in the author's RTL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.reference import session
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import (
    BS_WORDS,
    groups,
    unpack_bias_scale,
    unpack_channel_weights,
    unpack_slopes,
    unpack_table,
    unpack_weights,
)
from npuc.targets.easynpu.machine.timing import is_dense, kernel_extent

EXACT_FLOAT32 = 1 << 24
ACCUMULATOR = 1 << 31
RAISED = 128
"""Added to results without ReLU, so that none is negative after saturation."""


def quantise(acc: Array, scale: Array) -> Array:
    """int8 of accumulators (int64): sat8(round_half_up(acc * 2^scale)); scale: int8 per channel, negative = right.

    Raises ArtefactError (E503) where a left shift would leave 32 bits, as the machine would wrap there.
    """
    right, left = np.maximum(-scale.astype(np.int64), 0), np.maximum(scale.astype(np.int64), 0)
    if max(right.max(initial=0), left.max(initial=0)) > 31 or (np.abs(acc) << left).max(initial=0) >= ACCUMULATOR:
        raise ArtefactError(
            "E503", f"shift scales of {scale.min()}..{scale.max()}", limit="-31..31 without overflow"
        )
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    return np.clip(((acc << left) + half) >> right, -128, 127).astype(np.int8)


def add(block: Array, x: Array, other: Array) -> Array:
    """The requantised sum of two maps (samples, H, W, C) int8; block: the bias-scale words."""
    return _combine(block, x.astype(np.int32) + other)


def multiply(block: Array, x: Array, other: Array) -> Array:
    """Their requantised product."""
    return _combine(block, x.astype(np.int32) * other)


def _combine(block: Array, acc: Array) -> Array:
    """Raises ArtefactError (E503) for a bias, as the second operand takes the bias input of the PE."""
    bias, scale = unpack_bias_scale(block, acc.shape[-1])
    if bias.any():
        raise ArtefactError("E503", "a bias in the block of a sum or product", limit="0")
    if (scale == scale[0]).all() and -8 <= scale[0] <= 0:
        shift = int(-scale[0])
        acc += (1 << shift) >> 1
        return np.clip(acc >> shift, -128, 127).astype(np.int8)
    return quantise(acc.astype(np.int64), scale)


def activation(block: Array, x: Array) -> Array:
    """int8 of any shape after an activation table; block: its 7 words.

    The formula is evaluated for all 256 inputs, and the elements select from the results.
    """
    table = unpack_table(block)
    inputs = np.arange(-128, 128)
    segment = np.searchsorted(table.start, inputs, side="right") - 1
    acc = table.a[segment].astype(np.int64) * inputs + table.b[segment]
    return _by_bits(_expected_within(acc), np.array([table.scale]))[x.view(np.uint8)]


def apply_slopes(block: Array, x: Array) -> Array:
    """int8 (..., C) after a slope per channel for each sign of x; block: 4 words per 16 channels."""
    channels = x.shape[-1]
    positive, positive_scale, negative, negative_scale = unpack_slopes(block, channels)
    inputs = np.arange(-128, 128)
    above, below = (
        _by_bits(inputs * each[:, None].astype(np.int64), scale[:, None])
        for each, scale in ((positive, positive_scale), (negative, negative_scale))
    )
    table = np.concatenate([above[:, :128], below[:, 128:]], axis=1)
    return table.ravel()[x.view(np.uint8) + 256 * np.arange(channels)]


def _by_bits(acc: Array, scale: Array) -> Array:
    """int8 of accumulators (..., 256) for x = -128..127, ordered by x's bit pattern: 0..127, -128..-1."""
    return np.roll(quantise(acc, scale), 128, axis=-1)


def _expected_within(acc: Array) -> Array:
    """The accumulators themselves. Raises ArtefactError (E503) where one exceeds 32 bits."""
    if np.abs(acc).max(initial=0) >= ACCUMULATOR:
        raise ArtefactError("E503", f"a table's accumulator reaches {np.abs(acc).max()}", limit="below 2^31")
    return acc


def max_pool(x: Array, layer: Layer) -> Array:
    """The largest int8 under each window; the padding is -128, which the bias path injects."""
    padded = padded_input(x, layer, -128)
    taps = (
        padded[
            :,
            hk : hk + (layer.Ho - 1) * layer.Sh + 1 : layer.Sh,
            wk : wk + (layer.Wo - 1) * layer.Sw + 1 : layer.Sw,
        ]
        for hk in range(0, kernel_extent(layer.Hk, layer.Dh), layer.Dh + 1)
        for wk in range(0, kernel_extent(layer.Wk, layer.Dw), layer.Dw + 1)
    )
    return reduce(np.maximum, taps)


def padded_input(x: Array, layer: Layer, value: int) -> Array:
    """The map with its padding; rows and columns that no window reaches are left out."""
    top, left, bottom, right = _padding(layer)
    height, width = _reached_extents(layer)
    x = x[:, :height, :width]
    if not any((top, left, bottom > 0, right > 0)):
        return x
    around = ((0, 0), (top, max(bottom, 0)), (left, max(right, 0)), (0, 0))
    return np.pad(x, around, constant_values=value)


@frozen
class Psums:
    """Accumulators (samples, Ho, Wo, Co); float32 where these hold every integer up to the bound, else int64."""

    values: Array
    bound: int
    """None has a larger magnitude."""


class ConvolutionWord:
    """A convolution, fully connected, depthwise or average-pooling word with its weight block.

    Several blocks are those of tiles that run side by side. Maps are then (tiles * samples, H, W, C).
    """

    def __init__(self, layer: Layer, blocks: Sequence[Array]) -> None:
        self.layer, self.tiles = layer, len(blocks)
        split = BS_WORDS * groups(layer.Co)
        heads = [unpack_bias_scale(block[:split], layer.Co) for block in blocks]
        self.bias, self.scale = (np.stack(each) for each in zip(*heads, strict=True))
        window = (layer.Hk, layer.Wk)
        self.w = np.stack(
            [
                unpack_weights(block[split:], layer.Co, layer.Ci, *window)
                if is_dense(layer)
                else unpack_channel_weights(block[split:], layer.Co, *window)
                for block in blocks
            ]
        )
        operation = layer.operation
        self.relu = operation is not None and operation.mnemonic.endswith("_relu")
        taps = 128 * np.abs(self.w, dtype=np.int16).reshape(*self.bias.shape, -1).sum(axis=2, dtype=np.int64)
        self.bound = int((taps + np.abs(self.bias.astype(np.int64))).max())
        if self.bound >= ACCUMULATOR:
            raise ArtefactError("E503", f"an accumulator can reach {self.bound}", limit="below 2^31")
        self.sessions: dict[str, Any] = {}
        """By the name of the method that creates them."""
        self.ran = False

    def __call__(self, x: Array) -> Array:
        """The int8 ofmap (samples, Ho, Wo, Co) of an ifmap (samples, Hi, Wi, Ci) int8."""
        if self.exact:
            run = self._prepare_sessions(len(x), self._requantising)
            raised = _as_maps(
                self.layer, run.run(None, {"x": _arrange_maps(self.layer, x, self.tiles)})[0], self.tiles
            )
            return (raised if self.relu else np.bitwise_xor(raised, 128, out=raised)).view(np.int8)
        return self.quantised(self.accumulate(x, None))

    @property
    def exact(self) -> bool:
        """Whether one float32 convolution gives the requantised value exactly."""
        rounding = (1 if self.relu else 2 * RAISED + 1) << max(-int(self.scale.min()) - 1, 0)
        shifts_right = self.scale.min() >= -31 and self.scale.max() <= 0
        return self.bound + rounding < EXACT_FLOAT32 and shifts_right and 0 not in _reached_extents(self.layer)

    def accumulate(self, x: Array, psums: Psums | None) -> Psums:
        """The bias or the kept psums, plus the sum of products.

        Raises ArtefactError (E503) for a bias together with kept psums: the adder has one input for both.
        """
        layer, given = self.layer, _arrange_maps(self.layer, x, self.tiles)
        if psums is not None and self.bias.any():
            raise ArtefactError("E503", "a bias where psums are kept", limit="0: the first word's bias is in them")
        bound = self.bound + (0 if psums is None else psums.bound)
        total = np.zeros((len(x), layer.Ho, layer.Wo, layer.Co), np.float32 if bound < EXACT_FLOAT32 else np.int64)
        if psums is None:
            self._per_channel(total)[...] = self.bias[:, None]
        else:
            np.copyto(total, psums.values, casting="unsafe")
        for part in self._prepare_sessions(len(x), self._parts) if 0 not in _reached_extents(layer) else ():
            products = _as_maps(layer, part.run(None, {"x": given})[0], self.tiles)
            np.add(total, products, out=total, casting="unsafe", dtype=total.dtype)
        if bound >= ACCUMULATOR and np.abs(total).max(initial=0) >= ACCUMULATOR:
            raise ArtefactError("E503", "a psum leaves 32 bits", limit="below 2^31")
        return Psums(total, bound)

    def quantised(self, psums: Psums) -> Array:
        """int8 of psums, with ReLU where the word has it."""
        least, lowest = -int(self.scale.min()), 0 if self.relu else -128
        if self.scale.max() > 0 or least > 31 or psums.bound + (1 << max(least - 1, 0)) >= EXACT_FLOAT32:
            acc = self._per_channel(psums.values.astype(np.int64))
            return np.maximum(quantise(acc, self.scale[:, None]), lowest).reshape(psums.values.shape)
        values = self._per_channel(psums.values) * np.ldexp(np.float32(1), self.scale[:, None].astype(np.int32))
        values += np.where(self.scale[:, None] < 0, np.float32(0.5), np.float32(0))
        np.floor(values, out=values)
        return np.clip(values, lowest, 127, out=values).astype(np.int8).reshape(psums.values.shape)

    def _per_channel(self, values: Array) -> Array:
        """Maps (tiles * samples, Ho, Wo, Co) as (tiles, pixels, Co)."""
        return values.reshape(self.tiles, values.size // (self.tiles * self.layer.Co), self.layer.Co)

    def _prepare_sessions(self, samples: int, make: Callable[[bool], Any]) -> Any:
        """The session or sessions that run the word; a first sample that comes alone gets ones that open fast."""
        alone, self.ran = samples == self.tiles and not self.ran, True
        if alone:
            return make(True)
        if make.__name__ not in self.sessions:
            self.sessions[make.__name__] = make(False)
        return self.sessions[make.__name__]

    def _requantising(self, few_runs: bool) -> Any:
        power = np.ldexp(np.float32(1), self.scale.astype(np.int32))
        half = np.where(self.scale < 0, np.float32(0.5), np.float32(0))
        w = self.w.astype(np.float32) * power[..., None, None, None]
        raised, highest = (0, 127) if self.relu else (RAISED, 255)
        bias = self.bias.astype(np.float32) * power + half + np.float32(raised)
        return convolution(self.layer, w, bias, highest, few_runs=few_runs)

    def _parts(self, few_runs: bool) -> list[Any]:
        """Float32 convolutions over so few taps each that every sum is exact."""
        shape = self.w.shape[2:]
        bound = 128 * np.abs(self.w, dtype=np.int32).reshape(-1, prod(shape))
        taps = np.arange(bound.shape[1])
        parts = int(bound.sum(axis=1).max() // EXACT_FLOAT32) + 1
        while max((bound[:, part::parts]).sum(axis=1).max() for part in range(parts)) >= EXACT_FLOAT32:
            parts += 1
        masks = [(taps % parts == part).reshape(shape) for part in range(parts)]
        weights = ((self.w * mask).astype(np.float32) for mask in masks)
        return [convolution(self.layer, each, None, None, few_runs=few_runs) for each in weights]


Step = tuple[str, tuple[str, ...], Mapping[str, Any]]
"""An ONNX operator applied to the previous result: its name, constants and attributes."""
NOTHING: Mapping[str, tuple[int, ...]] = {}


def _padding(layer: Layer) -> tuple[int, int, int, int]:
    """Rows and columns of padding: top and left as in the word, bottom and right as implied by Ho and Wo."""
    bottom = (layer.Ho - 1) * layer.Sh + kernel_extent(layer.Hk, layer.Dh) - layer.Ph - layer.Hi
    right = (layer.Wo - 1) * layer.Sw + kernel_extent(layer.Wk, layer.Dw) - layer.Pw - layer.Wi
    return layer.Ph, layer.Pw, bottom, right


def _reached_extents(layer: Layer) -> tuple[int, int]:
    """Rows and columns of the map that windows reach; 0 where all windows are in the padding."""
    _, _, bottom, right = _padding(layer)
    return max(layer.Hi + min(bottom, 0), 0), max(layer.Wi + min(right, 0), 0)


def onnx_extents(layer: Layer) -> tuple[int, int]:
    """Rows and columns for an ONNX operator, which needs at least one: those that windows reach, or the first."""
    height, width = _reached_extents(layer)
    return max(height, 1), max(width, 1)


def convolution(layer: Layer, w: Array, bias: Array | None, highest: int | None, *, few_runs: bool = False) -> Any:
    """A session from `_arranged` maps int8 of several tiles to results in the same arrangement.

    w: (tiles, Co, Ci or 1, Hk, Wk) float32; bias: (tiles, Co) float32. Results are uint8, saturated to 0..highest
    and rounded down, or float32 sums where highest is None. few_runs: share the session between layers that differ
    only in values.
    """
    tiles, window = len(w), () if _is_product(layer) else tuple(_window_attributes(layer, len(w)).items())
    if window:
        weights = {"w": w.reshape(-1, *w.shape[2:])} | ({} if bias is None else {"b": bias.ravel()})
    else:
        weights = {"w": w[..., 0, 0].transpose(0, 2, 1)} | ({} if bias is None else {"b": bias[:, None]})
        weights = {name: each[0] for name, each in weights.items()} if tiles == 1 else weights
    weights = {name: np.ascontiguousarray(each) for name, each in weights.items()}
    shape = _Shape(tiles, tuple(each.shape for each in (w, *([] if bias is None else [bias]))), window, highest)
    if not few_runs:
        return session(_model(shape, weights))
    return _Fed(_shared_session(shape, tuple((name, each.shape) for name, each in weights.items())), weights)


def _arrange_maps(layer: Layer, x: Array, tiles: int) -> Array:
    """The reached part of maps (tiles * samples, H, W, C), as a session takes it.

    That is (tiles, rows, C) for matrix products, (rows, C) for those of one tile, and otherwise
    (samples, H, W, tiles * C).
    """
    height, width = _reached_extents(layer)
    x = np.ascontiguousarray(x[:, :height, :width])
    if _is_product(layer):
        return x.reshape(-1, layer.Ci) if tiles == 1 else x.reshape(tiles, -1, layer.Ci)
    return side_by_side(x, tiles)


def _as_maps(layer: Layer, y: Array, tiles: int) -> Array:
    """A session's results as maps (tiles * samples, Ho, Wo, Co)."""
    if _is_product(layer):
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
def _shared_session(shape: _Shape, weights: tuple[tuple[str, tuple[int, ...]], ...]) -> Any:
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


def _is_product(layer: Layer) -> bool:
    """Whether the word is a matrix product: an output per pixel, of all channels of that pixel."""
    return (
        is_dense(layer) and (layer.Hk, layer.Wk, layer.Sh, layer.Sw) == (1, 1, 1, 1) and not any(_padding(layer))
    )


def _window_attributes(layer: Layer, tiles: int) -> dict[str, Any]:
    """The attributes of the ONNX Conv of the rows and columns that are `kept`, of that many tiles in groups.

    Where all windows are in the padding, a negative number of them is added after the first one.
    """
    pads, extents = _padding(layer), (layer.Hi, layer.Wi)
    after = (pad + extent - left for pad, extent, left in zip(pads[2:], extents, onnx_extents(layer), strict=True))
    return {
        "strides": (layer.Sh, layer.Sw),
        "pads": (*pads[:2], *after),
        "dilations": (layer.Dh + 1, layer.Dw + 1),
        "group": tiles * (1 if is_dense(layer) else layer.Co),
    }
