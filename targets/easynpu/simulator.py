"""The fast simulator: whole layers, bit-exact, from words and memory images alone.

It follows the document's machine: a run fetches layer words in order; a fused chain hands int8 from stage to
stage; BasicConv accumulates over input channels, ChannelWise does not; results go to the other end of the Fmap
DTCM, or where an extension word says. Many samples run side by side. Words that no machine could execute
(inconsistent x', y'; pads or psums exceeded; addresses outside a DTCM) are refused by name (E503).
Source: easynpu, Master controller (pseudo-code), Storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from npuc.errors import ArtefactError, EncodingError
from npuc.ir import Array
from npuc.targets.easynpu import arithmetic, isa, listing
from npuc.targets.easynpu.artefact import Segment, TensorMove
from npuc.targets.easynpu.isa import Control, Halt, Layer, Operand
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import (
    BS_WORDS,
    LANES,
    Place,
    groups,
    high_end,
    low_end,
    pack_feature,
    to_lanes,
    unpack_feature,
)
from npuc.targets.easynpu.timing import is_dense, tile_input

Observer = Callable[[int, Array], None]
"""Called with the number of a layer word in the program and its int8 result (samples, Ho, Wo, Co)."""


@dataclass
class State:
    """The memories of `samples` machines, and what a run keeps between words."""

    fmap: Array
    skip: Array
    weight: Array
    itcm: tuple[isa.Instruction, ...]
    low: bool = True
    """The current map lies at the low end of the Fmap DTCM."""
    weights_at: int = 0
    """The weight stream's next word."""

    def memory(self, name: str) -> Array:
        """The Fmap or skip DTCM of all samples: (samples, words, 16)."""
        return self.fmap if name == "fmap" else self.skip


class Simulator:
    """Runs segments on the memories of one program; layer kernels are kept for the next batch."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes]) -> None:
        self.machine = machine
        self.files = files
        self.kernels: dict[tuple[int, int], arithmetic.Convolution] = {}

    def state(self, samples: int) -> State:
        """Memories as they are at power-up (zeros here; no program may depend on it)."""
        machine = self.machine
        return State(
            np.zeros((samples, machine.fmap_words, LANES), np.int8),
            np.zeros((samples, machine.skip_words, LANES), np.int8),
            np.zeros((machine.weight_words, LANES), np.int8),
            (),
        )

    def run(
        self, segment: Segment, state: State, tensors: dict[str, Array], observe: Observer | None = None
    ) -> None:
        """Loads, runs and stores; tensors (samples, 1, C, H, W) int8 by name are read and added to."""
        first = self._load_images(segment, state)
        for move in segment.loads:
            words = pack_feature(tensors[move.tensor].reshape(-1, *move.map_shape)[move.window])
            _view(state, move.place, move.height, move.width, move.channels)[...] = words
        if segment.count > len(state.itcm):
            raise _refused(first, f"{segment.count} words are run, {len(state.itcm)} are loaded", None)
        self._execute(state, first, segment.count, observe)
        for move in segment.stores:
            _store(state, move, tensors)

    def _load_images(self, segment: Segment, state: State) -> int:
        """Fills ITCM and weight DTCM; gives the number in itcm.bin of the first word."""
        first = 0
        for image in segment.images:
            start, size = image.start * isa.WORD_BYTES, image.words * isa.WORD_BYTES
            data = self.files[image.file][start : start + size]
            capacity = self.machine.capacity_words(image.memory)
            if len(data) != size or image.address + image.words > capacity:
                raise ArtefactError("E503", f"{image.words} words of {image.file} do not fit the {image.memory} memory")
            if image.memory == "itcm":
                first, state.itcm = image.start, isa.bytes_to_words(data)
            else:
                words = np.frombuffer(data, np.int8).reshape(-1, LANES)
                state.weight[image.address : image.address + image.words] = words
        return first

    def _execute(self, state: State, first: int, count: int, observe: Observer | None) -> None:
        state.low, state.weights_at = True, 0
        for chain in _chains(state.itcm[:count], first):
            self._run_chain(state, chain, observe)

    def _run_chain(self, state: State, chain: list[_Stage], observe: Observer | None) -> None:
        """A fused chain: the first stage reads the ifmap, the others the int8 of the stage before."""
        head, last = chain[0], chain[-1]
        x, psums = self._ifmap(state, head), None
        for stage in chain:
            _check(stage, self.machine, head, psums is not None)
            if psums is not None:
                x = self._ifmap(state, stage)
            if stage.control is not None and stage.control.set_weights:
                state.weights_at = stage.control.weights
            keep = stage.control is not None and bool(stage.control.keep_psum)
            result = self._stage(state, stage, x, psums, keep)
            psums = result if keep else None
            if not keep:
                x = result
            if observe is not None and not keep:
                observe(stage.number, x)
            if stage.layer.stored:
                kept = _place(stage.operands.get("sto")) or low_end("skip", 0, stage.layer.Co, stage.layer.Wo)
                _write(state, kept, x)
        dst = _place(last.operands.get("dst"))
        if dst is None:
            state.low = not state.low
            dst = _implicit(state, self.machine, last.layer.Co, last.layer.Wo)
        _write(state, dst, x)

    def _ifmap(self, state: State, stage: _Stage) -> Array:
        """The map that a stage reads from a DTCM: (samples, Hi, Wi, Ci) int8."""
        layer = stage.layer
        src = _place(stage.operands.get("src")) or _implicit(state, self.machine, layer.Ci, layer.Wi)
        return _read(state, src, layer.Hi, layer.Wi, layer.Ci)

    def _stage(self, state: State, stage: _Stage, x: Array, psums: Array | None, keep: bool) -> Array:
        """int8 (samples, Ho, Wo, Co) of one stage; raw psums where they are kept."""
        layer, name = stage.layer, stage.name
        if (psums is not None or keep) and name not in ("conv", "dwconv", "avgpool"):
            raise _refused(stage.number, "psums are kept for or by a word that does not accumulate", layer)
        match name:
            case "maxpool":
                return arithmetic.max_pool(x, layer)
            case "relu":
                return np.maximum(x, 0)
            case "add" | "mul":
                place = _place(stage.operands.get("opb")) or low_end("skip", 0, layer.Co, layer.Wo)
                other = _read(state, place, layer.Ho, layer.Wo, layer.Co)
                scale = self._take(state, stage, BS_WORDS * groups(layer.Co))
                return arithmetic.combine(name, x, other, scale)
            case _:
                kernel = self._kernel(state, stage)
                if psums is None and not keep:
                    return kernel(x)
                total = kernel.accumulate(x, psums)
                return total if keep else kernel.quantised(total)

    def _kernel(self, state: State, stage: _Stage) -> arithmetic.Convolution:
        """The convolution that the word and its weight block describe; made once per word and block."""
        layer = stage.layer
        at = state.weights_at
        block = self._take(state, stage, arithmetic.block_words(layer))
        key = (stage.number, at)
        if key not in self.kernels or not np.array_equal(self.kernels[key].block, block):
            self.kernels[key] = arithmetic.Convolution(layer, block)
        return self.kernels[key]

    def _take(self, state: State, stage: _Stage, words: int) -> Array:
        """The next words of the weight stream."""
        start, state.weights_at = state.weights_at, state.weights_at + words
        if state.weights_at > len(state.weight):
            raise _refused(stage.number, f"weight words {start}..{state.weights_at - 1} are streamed", stage.layer)
        return state.weight[start : state.weights_at]


@dataclass(frozen=True)
class _Stage:
    """A layer word with its number in the program and the extension words before it."""

    number: int
    layer: Layer
    operands: Mapping[str, Operand]
    control: Control | None

    @property
    def name(self) -> str:
        operation = self.layer.operation
        return operation.mnemonic.removesuffix("_relu") if operation and operation.mnemonic != "relu" else "relu"


def _chains(words: tuple[isa.Instruction, ...], first: int) -> Iterator[list[_Stage]]:
    """The words grouped into fused chains. Raises ArtefactError for an undefined word or an open chain."""
    operands: dict[str, Operand] = {}
    control: Control | None = None
    chain: list[_Stage] = []
    for number, word in enumerate(words, first):
        match word:
            case Operand():
                operands[isa.ROLES[word.opcode]] = word
            case Control():
                control = word
            case Layer():
                chain.append(_Stage(number, word, operands, control))
                operands, control = {}, None
                if not word.fused:
                    yield chain
                    chain = []
            case Halt():
                break
            case _:
                raise _refused(number, "the word is not an instruction", word)
    if chain or operands or control:
        raise _refused(first + len(words) - 1, "the program ends within a chain", words[-1])


def _refused(number: int, reason: str, word: isa.Instruction | None) -> ArtefactError:
    text = f": {listing.disassemble(word)}" if word is not None else ""
    return ArtefactError("E503", f"instruction {number}: {reason}{text}", remedy="npuc dump shows every word")


def _check(stage: _Stage, machine: Machine, head: _Stage, psums_kept: bool) -> None:
    """Refuses a word that contradicts itself, the machine or the head of its chain."""
    layer = stage.layer
    rows, columns = tile_input(layer, layer.y, layer.x)
    psums = layer.y * layer.x * (layer.Zs if is_dense(layer) else 1)
    problems = {
        f"y' x' are {layer.yi} x {layer.xi}, the tile needs {rows} x {columns}": (layer.yi, layer.xi) != (rows, columns),
        f"{rows * columns} entries of {machine.ifmap_pad_entries} in an ifmap pad": rows * columns
        > machine.ifmap_pad_entries,
        f"{psums} psums of {machine.psum_entries}": psums > machine.psum_entries,
        f"Zs = {layer.Zs} for {layer.Co} output channels": layer.Zs != groups(layer.Co),
        f"Zs = {layer.Zs} of {machine.weight_pad_entries} weight pad entries": layer.Zs > machine.weight_pad_entries,
        "a channel-wise word with Ci != Co": not is_dense(layer) and layer.Ci != layer.Co,
        "a stride of 0": 0 in (layer.Sh, layer.Sw),
        "a word that cannot continue on a fused result": stage is not head
        and stage.name not in ("bn", "relu", "add", "mul")
        and not psums_kept,
        "a fused word of another output size": (layer.Ho, layer.Wo, layer.Co)
        != (head.layer.Ho, head.layer.Wo, head.layer.Co),
    }
    for reason, wrong in problems.items():
        if wrong:
            raise _refused(stage.number, reason, layer)


def _place(operand: Operand | None) -> Place | None:
    if operand is None:
        return None
    if operand.memory >= len(isa.MEMORIES):
        raise EncodingError("E503", f"memory {operand.memory} in an extension word", limit="0 or 1")
    return Place(isa.MEMORIES[operand.memory], operand.base, operand.row, operand.pixel, operand.group)


def _implicit(state: State, machine: Machine, channels: int, width: int) -> Place:
    """The current end of the Fmap DTCM."""
    if state.low:
        return low_end("fmap", 0, channels, width)
    return high_end("fmap", machine.fmap_words, channels, width)


def _view(state: State, place: Place, height: int, width: int, channels: int) -> Array:
    return place.words(state.memory(place.memory), height, width, groups(channels))


def _read(state: State, place: Place, height: int, width: int, channels: int) -> Array:
    """(samples, height, width, channels) int8."""
    words = _view(state, place, height, width, channels)
    return words.reshape(*words.shape[:3], -1)[..., :channels]


def _write(state: State, place: Place, x: Array) -> None:
    _view(state, place, x.shape[1], x.shape[2], x.shape[3])[...] = to_lanes(x)


def _store(state: State, move: TensorMove, tensors: dict[str, Array]) -> None:
    """Copies a map to its window of a host tensor, which is made when its first window arrives."""
    words = _view(state, move.place, move.height, move.width, move.channels)
    if move.tensor not in tensors:
        tensors[move.tensor] = np.zeros((len(words), *move.shape), np.int8)
    whole = tensors[move.tensor].reshape(len(words), *move.map_shape)
    whole[move.window] = unpack_feature(words, move.channels)
