"""Segments as one network, which computes what their words compute without the memories in between.

The words are walked once, as the simulator does, with memories that contain names instead of values. If every
accumulator is below 2^24 (float32) or 2^31 (integers), and every map that is read consists of maps that were
written, the result is a network for onnxruntime that equals the simulator bit for bit. Everything else is left to
the simulator, which also reports what is wrong with a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from npuc.errors import ArtefactError, ModelError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.reference import integers_are_exact
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.chains import Stage, chains
from npuc.targets.easynpu.machine.memory import (
    BS_WORDS,
    LANES,
    SLOPE_WORDS,
    TABLE_WORDS,
    Map,
    groups,
    unpack_bias_scale,
)
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import rearranged
from npuc.targets.easynpu.machine.rules import POINTWISE, check, expect_kept
from npuc.targets.easynpu.program.artefact import Segment, TensorMove
from npuc.targets.easynpu.simulate import arithmetic
from npuc.targets.easynpu.simulate.convolution import kept, window_attributes
from npuc.targets.easynpu.simulate.loading import load_images
from npuc.targets.easynpu.simulate.network import FINEST, FINEST_POSITIVE, RAISED, Network, factors
from npuc.targets.easynpu.simulate.origins import NotOneNetwork, Origins, Value, ValuePart, Words, read
from npuc.targets.easynpu.simulate.products import Product, Sums, over_channels, product, with_whole_kernels


@frozen
class SegmentNetwork:
    """Segments as an open session, from host tensors to host tensors."""

    session: Any
    inputs: Mapping[str, tuple[int, ...]]
    """Extents (C, H, W) of the input tensors, by name."""
    outputs: Mapping[str, tuple[int, ...]]
    """Shapes of the output tensors, without samples, by name."""

    def takes(self, tensors: Mapping[str, Array]) -> bool:
        """Whether the session can run on these host tensors; if not, the simulator reports the error."""
        found = ((tensors.get(name), prod(extents)) for name, extents in self.inputs.items())
        return all(each is not None and each.dtype == np.int8 and each[0].size == size for each, size in found)

    def run(self, tensors: dict[str, Array]) -> None:
        """Adds what the segments store to the tensors (samples, *shape) int8."""
        feeds = {name: _flipped(tensors[name], np.uint8).reshape(-1, *each) for name, each in self.inputs.items()}
        found = self.session.run([*self.outputs], feeds)
        for (name, shape), value in zip(self.outputs.items(), found, strict=True):
            tensors[name] = _flipped(value, np.int8).reshape(len(value), *shape)


def _flipped(values: Array, dtype: type[np.int8 | np.uint8]) -> Array:
    """int8 as uint8 raised by 128, or the reverse."""
    return np.bitwise_xor(values.view(np.uint8), np.uint8(RAISED)).view(dtype)


def segment_network(
    segments: Sequence[Segment],
    files: Mapping[str, bytes],
    machine: Machine,
    wanted: set[str],
    *,
    quantised: bool | None = None,
) -> SegmentNetwork | None:
    """The segments as one network; None where that is impossible, or where the simulator would refuse them.

    wanted: the stored tensors that are needed. quantised: compute in integers, or in float32; by default in
    integers where onnxruntime's products are exact on this processor.
    """
    chosen = integers_are_exact() if quantised is None else quantised
    walk = Walk(machine, files, Network(quantised=chosen))
    try:
        for segment in segments:
            walk.segment(segment)
        return walk.opened(wanted)
    except (NotOneNetwork, ArtefactError, ModelError):
        return None


@frozen
class HostTensor:
    """A tensor between host steps and segments as a tensor of the network: (N, *shape)."""

    name: str
    shape: tuple[int, ...]
    raised: bool = False
    """Whether it is int8, here uint8 raised by 128; otherwise float32."""
    moved: tuple[HostTensor, tuple[int, ...]] | None = None
    """The tensor of which it is a Transpose, and the order of axes."""


@dataclass
class Walk:
    """The machine, with names in its memories."""

    machine: Machine
    files: Mapping[str, bytes]
    network: Network
    itcm: tuple[isa.Instruction, ...] = ()
    low: bool = True
    weights_at: int = 0
    kept: isa.Layer | None = None
    sums: Sums | None = None

    def __post_init__(self) -> None:
        self.memories = {name: Origins(self.machine.capacity_words(name)) for name in isa.MEMORIES}
        self.weight = np.zeros((self.machine.weight_words, LANES), np.int8)
        self.host: dict[str, Origins] = {}
        self.given: dict[str, tuple[int, ...]] = {}
        self.stored: dict[str, TensorMove] = {}
        self.hosted: dict[str, HostTensor] = {}
        """Tensors that host steps computed, or that were given to them."""

    def load_weights(self, address: int, words: Array) -> None:
        """Fills the weight DTCM."""
        self.weight[address : address + len(words)] = words

    def segment(self, segment: Segment) -> None:
        """Loads, runs and stores a segment. Raises NotOneNetwork, ArtefactError."""
        first = load_images(segment, self.files, self.machine, self)
        for move in segment.loads:
            self._write(move.map, self._read(self._of_host(move).at(_words(move), move.channels)))
        self.low, self.weights_at = True, 0
        for chain in chains(self.itcm[: segment.count], first):
            check(chain, self.machine, self.low)
            self.kept = expect_kept(self.kept, chain)
            self._chain(chain)
        for move in segment.stores:
            if move.tensor in self.given or move.tensor in self.hosted:
                raise NotOneNetwork("a tensor is stored that was given")
            self.stored.setdefault(move.tensor, move)
            origins = self.host.setdefault(move.tensor, Origins(_size(move)))
            value = self._read(self._at(move.map, move.channels))
            origins.write(_words(move), self.network.words(value))

    def opened(self, wanted: set[str]) -> SegmentNetwork:
        """The network with the wanted tensors as outputs."""
        outputs: dict[str, tuple[int, ...]] = {}
        for name, move in self.stored.items():
            if name in wanted:
                self.network.gives(name, self._stored(move))
                outputs[name] = move.shape
        if not outputs:
            raise NotOneNetwork("nothing is wanted of it")
        return SegmentNetwork(self.network.session(), self.given, outputs)

    def _stored(self, move: TensorMove) -> Value:
        """The whole map of a tensor that was stored."""
        channels, height, width = move.map_shape
        everything = np.arange(_size(move)).reshape(height, width, -1)
        return self._read(self.host[move.tensor].at(everything, channels))

    def of_host_step(self, name: str) -> HostTensor:
        """A tensor that a host step reads. Raises NotOneNetwork if nothing has written it."""
        if name not in self.hosted:
            if name not in self.stored:
                raise NotOneNetwork("nothing has written what a host step reads")
            move = self.stored[name]
            value = self.network.raised(self._stored(move))
            return HostTensor(self.network.reshaped(value.name, move.shape), move.shape, raised=True)
        return self.hosted[name]

    def _of_host(self, move: TensorMove) -> Origins:
        """The words of a host tensor, which becomes an input of the network unless something computed it."""
        if move.tensor not in self.host:
            self.host[move.tensor] = Origins(_size(move))
            value = self._given(move)
            self.host[move.tensor].write(value.words, value.everything)
        return self.host[move.tensor]

    def _given(self, move: TensorMove) -> Value:
        network, computed = self.network, self.hosted.get(move.tensor)
        if computed is None:
            self.given[move.tensor] = move.map_shape
            return network.given(move.tensor, *move.map_shape)
        if not computed.raised or prod(computed.shape) != prod(move.map_shape):
            raise NotOneNetwork("a tensor of the host has another type or size than its map")
        return network.value(network.reshaped(computed.name, move.map_shape), *move.map_shape, raised=True)

    def _read(self, words: Words) -> Value:
        """The value that a map is, with as many rows and columns as the map has words."""
        network, (height, width, _) = self.network, words.word.shape
        found = read(words, network.values, network.cut, network.joined)
        if (found.height, found.width) == (height, width):
            return found
        shape = network.constant(np.array([1, words.channels, height, width]))
        name = network.node("Expand", found.name, shape)
        return network.value(name, words.channels, height, width, raised=found.bytes)

    def _at(self, place: Map, channels: int) -> Words:
        """The words of the map at a place in a DTCM."""
        return self.memories[place.place.memory].at(_addresses(place, self.machine), channels)

    def _write(self, place: Map, value: Value) -> None:
        if not place.distinct:
            raise NotOneNetwork("several words go to one address")
        self.memories[place.place.memory].write(_addresses(place, self.machine), self.network.words(value))

    def _chain(self, chain: Sequence[Stage]) -> None:
        """Runs a chain as Simulator._run_chain does."""
        sums = self.sums if chain[0].takes else None
        x: Value | None = None
        for stage in chain:
            words = self._ifmap(stage) if x is None else self.network.words(x)
            if stage.control is not None and stage.control.set_weights:
                self.weights_at = stage.control.weights
            result = self._stage(stage, words, sums)
            x, sums = (None, result) if isinstance(result, Sums) else (result, None)
            if x is not None and stage.layer.stored:
                self._write(stage.stored(), x)
        self.sums = sums
        if x is None:
            return
        self._write(chain[-1].ofmap(self.machine, not self.low), x)
        if "dst" not in chain[-1].operands:
            self.low = not self.low

    def _ifmap(self, stage: Stage) -> Words:
        return self._at(stage.ifmap(self.machine, self.low), stage.layer.Ci)

    def _stage(self, stage: Stage, words: Words, sums: Sums | None) -> Value | Sums:
        """The result of a word on a map: the next map, or sums that it keeps."""
        layer = stage.layer
        if stage.name not in (*POINTWISE, "maxpool"):
            kernel = arithmetic.Convolution(layer, self._take(arithmetic.block_words(layer)))
            return self._convolved(stage, kernel, words, sums)
        x = self._read(words)
        if stage.reshape is not None:
            return self._rearranged(stage.reshape, x)
        match stage.name:
            case "maxpool":
                return self._max_pool(stage, x)
            case "relu":
                return self._positive(x)
            case "act":
                block = self._take(TABLE_WORDS)
                table = arithmetic.activation(block, np.arange(-128, 128).astype(np.int8))
                return self._looked_up(x, table)
            case "prelu":
                block = self._take(SLOPE_WORDS * groups(layer.Co))
                inputs = np.repeat(np.arange(-128, 128).astype(np.int8)[:, None], layer.Co, axis=1)
                table = arithmetic.sloped(block, inputs).T.ravel()
                return self._looked_up(x, table, 256 * np.arange(layer.Co).reshape(-1, 1, 1))
            case "add" | "mul":
                return self._combined(stage, x)
            case name:
                raise NotOneNetwork(f"a word of another kind: {name}")

    def _rearranged(self, word: isa.Reshape, x: Value) -> Value:
        """The elements of a map in the order of a reshape word."""
        network = self.network
        order = np.arange(x.channels * x.height * x.width).reshape(1, x.channels, x.height, x.width)
        order = rearranged(order.transpose(0, 2, 3, 1), word)[0].transpose(2, 0, 1)
        flat = network.node("Reshape", x.name, network.constant(np.array([0, -1])))
        name = network.node("Gather", flat, network.constant(order), axis=1)
        return network.value(name, word.Co, word.Ho, word.Wo, raised=x.bytes)

    def _take(self, words: int) -> Array:
        """The next words of the weight stream."""
        start, self.weights_at = self.weights_at, self.weights_at + words
        if self.weights_at > len(self.weight):
            raise NotOneNetwork("it streams words beyond the weight DTCM")
        return self.weight[start : self.weights_at]

    def _positive(self, x: Value) -> Value:
        """The value with negative elements set to 0."""
        network = self.network
        if not x.bytes:
            return network.like(network.node("Relu", x.name), x)
        limits = network.byte(RAISED), network.byte(255)
        return network.like(network.node("Clip", x.name, *limits), x, raised=True)

    def _max_pool(self, stage: Stage, x: Value) -> Value:
        """The largest elements of windows. Raises NotOneNetwork if there might be windows of padding only."""
        layer, kernel = stage.layer, (stage.layer.Hk, stage.layer.Wk)
        attributes = {**window_attributes(layer), "kernel_shape": kernel}
        if any(pad >= extent for pad, extent in zip(attributes["pads"], 2 * kernel, strict=True)):
            raise NotOneNetwork("windows lie in the padding")
        del attributes["group"]
        name = self.network.node("MaxPool", self._reached(layer, x).name, **attributes)
        return self._result(layer, name, raised=x.bytes)

    def _reached(self, layer: isa.Layer, x: Value) -> Value:
        """The rows and columns of x that windows reach, at least one of each."""
        return self.network.cut(ValuePart(x, (0, 0, 0), (x.channels, *kept(layer))))

    def _result(self, layer: isa.Layer, name: str, *, raised: bool = False) -> Value:
        return self.network.value(name, layer.Co, layer.Ho, layer.Wo, raised=raised)

    def _looked_up(self, x: Value, table: Array, offset: Array | int = 0) -> Value:
        """Table entries (uint8) selected by x raised by 128, plus an offset for each channel."""
        from onnx import TensorProto

        network = self.network
        at = network.node("Cast", network.raised(x).name, to=TensorProto.INT32)
        if np.any(offset):
            at = network.node("Add", at, network.constant(np.asarray(offset, np.int32)))
        entries = network.constant(_flipped(table, np.uint8))
        return network.like(network.node("Gather", entries, at), x, raised=True)

    def _combined(self, stage: Stage, x: Value) -> Value:
        network, layer = self.network, stage.layer
        other = self._operand(stage)
        bias, scale = unpack_bias_scale(self._take(BS_WORDS * groups(layer.Co)), layer.Co)
        if bias.any():
            raise NotOneNetwork("a bias in the block of a sum or product")
        shift = -int(scale[0])
        if network.quantised and stage.name == "add" and 0 <= shift <= 8 and (scale == scale[0]).all():
            return network.like(network.sum(x, other, shift), x, raised=True)
        pair = network.floats(x).name, network.floats(other).name
        name = network.node("Add" if stage.name == "add" else "Mul", *pair)
        return network.like(network.rounded(name, scale, lowest=-128), x)

    def _operand(self, stage: Stage) -> Value:
        """The second map, which may be a single pixel."""
        words = self._at(stage.operand(), stage.layer.Co)
        return read(words, self.network.values, self.network.cut, self.network.joined)

    def _convolved(
        self, stage: Stage, kernel: arithmetic.Convolution, x: Words, sums: Sums | None
    ) -> Value | Sums:
        """A convolution's results, including kept sums; or the sums that it keeps, to be computed later."""
        if sums and kernel.bias.any():
            raise NotOneNetwork("a bias where psums are kept")
        before = sums or Sums(kernel.bias, (), 0)
        products = *before.products, product(stage.layer, kernel.w, x)
        sums = Sums(before.bias, products, before.bound + kernel.bound)
        return sums if stage.keeps else self._requantised(sums, kernel)

    def _requantised(self, sums: Sums, last: arithmetic.Convolution) -> Value:
        """The results of psums, with the scale and ReLU of the last word."""
        products = with_whole_kernels(sums.products, self.network.values)
        sums = replace(sums, products=products)
        if not (self.network.quantised and _is_fine(last, sums.bound)):
            return self._in_floats(sums, last)
        if len(products) == 1 or over_channels(products):
            return self._in_bytes(sums, last)
        return self._in_integers(sums, last)

    def _in_bytes(self, sums: Sums, last: arithmetic.Convolution) -> Value:
        """Convolutions that differ only in their input channels, as one in integers."""
        network, products = self.network, sums.products
        x = network.joined(1, [self._read(each.x) for each in products])
        weights = np.concatenate([each.w for each in products], axis=1)
        window = window_attributes(products[0].layer)
        name = network.convolution(x, weights, sums.bias, last.scale, window, relu=last.relu)
        found = self._result(last.layer, name, raised=True)
        return self._positive(found) if last.relu else found

    def _in_integers(self, sums: Sums, last: arithmetic.Convolution) -> Value:
        """The sum of the products in int32, requantised."""
        network = self.network
        given = ((self._read(each.x), each.w, window_attributes(each.layer)) for each in sums.products)
        lowest = 0 if last.relu else -RAISED
        name = network.rounded(network.sums(given, sums.bias), last.scale, lowest)
        return network.raised(self._result(last.layer, name))

    def _in_floats(self, sums: Sums, last: arithmetic.Convolution) -> Value:
        """The sum of the products in float32. Raises NotOneNetwork for accumulators of 2^24 and more."""
        network, scale, lowest = self.network, last.scale, 0 if last.relu else -RAISED
        if sums.bound + (1 << max(-int(scale.min()) - 1, 0)) >= arithmetic.EXACT_FLOAT32:
            raise NotOneNetwork("sums of 2^24 and more")
        bias = sums.bias.astype(np.float32)
        if len(sums.products) == 1:
            if scale.min() < -31 or scale.max() > 0:
                raise NotOneNetwork("left shifts")
            power, half = factors(scale)
            name = self._products(sums.products[0], power, bias * power + half)
            name = network.node("Clip", name, network.scalar(lowest), network.scalar(127))
            return self._result(last.layer, network.node("Floor", name) if scale.any() else name)
        one, zero = np.ones_like(bias), np.zeros_like(bias)
        name, *others = (self._products(each, one, zero if at else bias) for at, each in enumerate(sums.products))
        for other in others:
            name = network.node("Add", name, other)
        return self._result(last.layer, network.rounded(name, scale, lowest))

    def _products(self, product: Product, power: Array, bias: Array) -> str:
        """A convolution, whose weights are multiplied by a factor per channel, and a bias, in float32."""
        weights = product.w.astype(np.float32) * power[:, None, None, None]
        constants = map(self.network.constant, (weights, bias))
        x = self.network.floats(self._read(product.x))
        return self.network.node("Conv", x.name, *constants, **window_attributes(product.layer))


def _is_fine(kernel: arithmetic.Convolution, bound: int) -> bool:
    """Whether Network.convolution gives the kernel's results if no accumulator exceeds a bound."""
    least = FINEST_POSITIVE if kernel.relu else FINEST
    raised = RAISED << max(-int(kernel.scale.min()), 0)
    return least <= kernel.scale.min() and kernel.scale.max() <= 0 and bound + raised < arithmetic.ACCUMULATOR


def _size(move: TensorMove) -> int:
    """Words of a host tensor in the layout of a memory."""
    channels, height, width = move.map_shape
    return height * width * groups(channels)


def _words(move: TensorMove) -> Array:
    """The words of its host tensor that a window covers: (H, W, C / 16). Raises NotOneNetwork within a group."""
    channels, height, width = move.map_shape
    first, row, column = move.start
    end = first + move.channels
    if first % LANES or (end % LANES and end != channels):
        raise NotOneNetwork("a window begins or ends within a group of channels")
    every = np.arange(_size(move)).reshape(height, width, -1)
    return every[row : row + move.height, column : column + move.width, first // LANES : groups(end)]


def _addresses(place: Map, machine: Machine) -> Array:
    """The addresses of a map. Raises NotOneNetwork outside its memory."""
    first, last = place.span
    if first < 0 or last >= machine.capacity_words(place.place.memory):
        raise NotOneNetwork("addresses outside a memory")
    return place.grid
