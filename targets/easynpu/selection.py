"""From integer nodes to jobs: a job is a chain of fused layer words with the weight blocks they stream.

Source: easynpu, opcode table and Fused layers. A convolution followed by an addition and an activation becomes
three words of which the first two carry the fused flag; each stage produces int8 exactly as if it stood alone.
What no single word can do is split exactly: output channels into jobs, input channels and kernels into parts whose
psums are kept from word to word (extension).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.ir import Array, Graph, Node
from npuc.ops.windows import window_of
from npuc.targets.easynpu.isa import BY_MNEMONIC, Layer, Reshape
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import (
    BS_WORDS,
    LANES,
    SLOPE_WORDS,
    TABLE_WORDS,
    TableBlock,
    groups,
    pack_bias_scale,
    pack_channel_weights,
    pack_slopes,
    pack_table,
    pack_weights,
)
from npuc.targets.easynpu.movement import WORD_OP, word_of
from npuc.targets.easynpu.tiling import FIELD_MOST
from npuc.targets.easynpu.views import (
    View,
    Views,
    concat_offsets,
    interleaved,
    is_alias,
    is_window,
    map_shape,
)
from npuc.targets.easynpu.windows import Window, whole

FIELD_CHANNELS = 256
"""Ci and Co have 8 bits, stored minus one."""


@dataclass(frozen=True)
class Stage:
    """One layer word without tile and flags, its block of the weight stream, and what it computes."""

    word: Layer | Reshape
    block: Array
    node: Node
    tensor: str | None = None
    """The int8 tensor it produces, whole or in part; None for a value that exists only between two stages."""
    source: View | None = None
    """The map it reads itself; None for a stage that continues on the result before it."""
    keeps: bool = False
    """Its psums are kept for the next stage."""


@dataclass(frozen=True)
class Job:
    """A fused chain: reads the sources of its stages, perhaps adds or multiplies `operand`, writes `result`."""

    stages: tuple[Stage, ...]
    result: View
    operand: View | None = None
    start: tuple[int, int, int] = (0, 0, 0)
    """The first channel, row and column that it computes of its tensors."""

    @property
    def sources(self) -> tuple[View, ...]:
        """The maps that the stages read, in order."""
        return tuple(stage.source for stage in self.stages if stage.source is not None)

    @property
    def reads(self) -> tuple[View, ...]:
        """Every map that the job reads."""
        return (*self.sources, self.operand) if self.operand is not None else self.sources


def runs_on_array(graph: Graph, node: Node) -> bool:
    """Whether a node of the integer graph is executed by the PE array, or is address arithmetic."""
    if graph.tensors[node.output].dtype != "int8":
        return False
    if node.op == "Concat":
        return len(graph.shape(node.output)) == 4 and node.integer("axis") > 0
    if node.op == "DepthToSpace":
        return interleaved(graph, node) is not None
    return node.op in ARRAY_OPS or is_alias(graph, node) or is_window(graph, node)


def geometry(
    node: Node, x: Window, y: Window, held: Window, kernel: tuple[int, int]
) -> tuple[dict[str, int], int, int]:
    """The layer word's fields for a window operator, and the first row and column that it reads of what is held.

    x: all of the input; held: what the DTCM holds of it; y: what is computed of the output. Padding before the
    map is in the word, padding after it is implied by Ho and Wo.
    """
    window = window_of(node, kernel)
    row, Ph, Hi = _axis(y.rows, held.rows, x.rows[1], window.strides[0], window.begins[0])
    column, Pw, Wi = _axis(y.columns, held.columns, x.columns[1], window.strides[1], window.begins[1])
    (outputs, rows, columns), channels = y.shape, held.shape[0]
    fields = {
        "Sh": window.strides[0], "Sw": window.strides[1],
        "Ph": Ph, "Pw": Pw,
        "Dh": window.dilations[0] - 1, "Dw": window.dilations[1] - 1,
        "Hk": kernel[0], "Wk": kernel[1],
        "Hi": Hi, "Wi": Wi, "Ci": channels,
        "Ho": rows, "Wo": columns, "Co": outputs, "Zs": groups(outputs),
    }  # fmt: skip
    return fields, row, column


def _axis(
    wanted: tuple[int, int], held: tuple[int, int], extent: int, stride: int, padding: int
) -> tuple[int, int, int]:
    """(first row read of what is held, padding before it, rows from there on)."""
    start = wanted[0] * stride - padding
    first = min(max(start, 0), extent - 1)
    return first - held[0], max(-start, 0), held[1] - first


def conv_mnemonic(group: int, channels: int, outputs: int) -> str:
    """Depthwise where every channel is its own group, dense where there is one group."""
    return "dwconv" if group == channels == outputs and group > 1 else "conv"


def is_batch_norm(graph: Graph, node: Node) -> bool:
    """Whether an integer convolution is w * x + b per channel: depthwise, 1x1, stride 1, no padding."""
    if node.op != "IntConv" or node.integer("average"):
        return False
    shape, outputs = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])[0]
    if conv_mnemonic(node.integer("group", 1), shape[1], outputs) != "dwconv":
        return False
    window = window_of(node, (1, 1))
    taps = graph.shape(node.inputs[1])[2:]
    return taps == (1, 1) and window.strides == (1, 1) and not any((*window.begins, *window.ends))


def select(
    graph: Graph,
    nodes: Sequence[Node],
    views: Views,
    windows: Mapping[str, Window],
    machine: Machine,
    *,
    documented: bool,
) -> list[Job]:
    """The jobs of a run of array nodes, in order. documented: only words that the document defines.

    windows: what is computed or held of every tensor.

    Raises DoesNotFit (E302) for a layer whose weights exceed the weight DTCM even for 16 outputs,
    UnsupportedOperator (E204) for a split that documented words cannot express.
    """
    return _Selection(graph, nodes, views, windows, machine, documented).jobs()


def fused_behind(graph: Graph, nodes: Sequence[Node], machine: Machine) -> Mapping[int, Node]:
    """For each node, by identity, that continues on the result of another: that other node.

    A chain ends where the bias and scale pads are full.
    """
    present = {id(node) for node in nodes}
    found: dict[int, Node] = {}
    entries = {id(node): _pad_entries(node) for node in nodes}
    for node in nodes:
        producer = graph.producers.get(_continued(graph, node))
        if producer is None or id(producer) not in present or producer.integer("average"):
            continue
        adds = node.op == "IntAdd"
        heads = ("IntConv",) if adds else ("IntConv", "IntAdd", "IntMul", *POINTWISE)
        same = graph.shape(producer.output) == graph.shape(node.output)
        if adds and id(producer) in found:  # a chain has one operand, which a sum before it may have taken
            continue
        held = entries[id(producer)] + entries[id(node)]
        if held > machine.parameter_pad_entries:
            continue
        if producer.op in heads and same and graph.only_reader(producer.output) is node:
            found[id(node)] = producer
            entries[id(node)] = held
    return found


def _pad_entries(node: Node) -> int:
    """Entries of the bias and scale pads that a node takes for 16 channels: a table one per segment."""
    return LANES if node.op == "IntTable" else int(_group_words(node) > 0)


def _continued(graph: Graph, node: Node) -> str:
    """The input whose producer the node may be fused behind; none if empty."""
    if node.op == "IntAdd" and "fused_input" in node.attrs and node.inputs[0] != node.inputs[1]:
        return node.inputs[node.integer("fused_input")]
    return node.inputs[0] if node.op in POINTWISE or is_batch_norm(graph, node) else ""


class _Selection:
    """One run of array nodes on its way to jobs."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        views: Views,
        windows: Mapping[str, Window],
        machine: Machine,
        documented: bool,
    ) -> None:
        self.graph = graph
        self.nodes = nodes
        self.views = views
        self.windows = windows
        self.machine = machine
        self.documented = documented

    def jobs(self) -> list[Job]:
        before = fused_behind(self.graph, self.nodes, self.machine)
        inner = {id(producer) for producer in before.values()}
        found: list[Job] = []
        for node in self.nodes:
            if id(node) not in inner:
                chain = [node]
                while id(chain[0]) in before:
                    chain.insert(0, before[id(chain[0])])
                found += self._jobs(chain[0], chain[1:])
        return found

    def _jobs(self, head: Node, followers: Sequence[Node]) -> Iterator[Job]:
        """The jobs of one node, with the nodes that are fused behind it."""
        match head.op:
            case "IntConv":
                yield from self._convolutions(head, followers)
            case "IntAdd" | "IntMul":
                yield from self._combination(head, followers)
            case "MaxPool":
                yield from self._max_pool(head)
            case op if op in POINTWISE:
                yield from self._pointwise(head, followers)
            case op if op == WORD_OP:
                stage = Stage(word_of(head), _no_words(), head, head.output, self.views.tensors[head.inputs[0]])
                yield Job((stage,), self.views.tensors[head.output])
            case "Concat" if head.output in self.views.copies and concat_offsets(self.graph, head) is None:
                yield from self._selecting(head)
            case "Concat" | "DepthToSpace":
                yield from self._copies(head)
            case _:
                return

    # Convolutions, depthwise convolutions and average pools

    def _convolutions(self, node: Node, followers: Sequence[Node]) -> Iterator[Job]:
        w, bias, shift = (self.graph.constants[name] for name in node.inputs[1:])
        last = (node, *followers)[-1]
        added = next((each for each in followers if each.op == "IntAdd"), None)
        name = conv_mnemonic(node.integer("group", 1), self.graph.shape(node.inputs[0])[1], len(w))
        name = "avgpool" if node.integer("average") else name
        if is_batch_norm(self.graph, node) and (self.documented or not node.integer("relu")):
            name = "bn"
        result, first = self.views.tensors[last.output], self.windows[last.output].channels[0]
        size = self._chunk(node, name, followers)
        if node.integer("blocks", 1) > 1 and not self.documented:
            size = _block_chunk(w[first : first + result.channels], size)
        for chunk in _bands(result.channels, size):
            kernels = slice(first + chunk.start, first + chunk.stop)
            stages = self._conv_stages(node, name, chunk, w[kernels], bias[kernels], shift[kernels])
            operand = None
            if added is not None:
                other = next(each for each in added.inputs if each != node.output)
                operand = _chunk_view(self._operand(other, added), chunk)
            stages = (*stages, *self._following(followers, chunk))
            yield Job(stages, _chunk_view(result, chunk), operand, self._start(last, chunk))

    def _word(
        self, node: Node, mnemonic: str, kernel: tuple[int, int], chunk: slice, *, dense: bool
    ) -> tuple[Layer, View]:
        """The word of a window operator for a chunk of output channels, as if every field and pad sufficed."""
        name = node.inputs[0]
        fields, row, column = geometry(
            node, whole(self.graph, name), self.windows[node.output], self.windows[name], kernel
        )
        outputs = chunk.stop - chunk.start
        fields |= {"Co": outputs, "Zs": groups(outputs)} | ({} if dense else {"Ci": outputs})
        source = self.views.tensors[name].part(row, column)
        if not dense:
            source = _chunk_view(source, chunk)
        return Layer(opcode=BY_MNEMONIC[mnemonic].opcode, **fields), source

    def _chunk(self, node: Node, name: str, followers: Sequence[Node]) -> int:
        """Output channels per job: at most what the word, the pads and the weight DTCM take; multiples of 16."""
        dense = name == "conv"
        kernel = self.graph.shape(node.inputs[1])[2:]
        word, _ = self._word(node, name, (kernel[0], kernel[1]), slice(0, LANES), dense=dense)
        parts = [part.word for part in split_kernel(word, self.machine, dense=dense)]
        per_group = sum(BS_WORDS + part.Hk * part.Wk * (part.Ci if dense else 1) for part in parts)
        per_group += sum(_group_words(each) for each in followers)
        tables = _table_words(followers)
        most = min(FIELD_CHANNELS // LANES, self.machine.weight_pad_entries, self.machine.psum_entries)
        most = min(most, self._held(node, 1, followers))
        fitting = min(most, (self.machine.weight_words - tables) // per_group)
        if fitting < 1:
            raise DoesNotFit(
                "E302",
                f"16 outputs take {per_group + tables} weight words",
                node=node.name,
                op="Conv",
                limit=f"weight_words = {self.machine.weight_words}",
                remedy=f"a machine with weight_words = {per_group + tables} (--machine FILE)",
            )
        return fitting * LANES

    def _conv_stages(
        self, node: Node, name: str, chunk: slice, w: Array, bias: Array, shift: Array
    ) -> tuple[Stage, ...]:
        """The words of one job: parts whose psums are kept, the first with the bias, the last with the ReLU."""
        dense = name == "conv"
        word, x = self._word(node, name, w.shape[2:], chunk, dense=dense)
        if dense and node.integer("blocks", 1) > 1:
            used = _used_channels(w)
            word, x, w = replace(word, Ci=used.stop - used.start), _chunk_view(x, used), w[:, used]
        parts = list(split_kernel(word, self.machine, dense=dense))
        if self.documented and len(parts) > 1:
            raise UnsupportedOperator(
                "E204",
                f"{word.Ci} channels and a {word.Hk} x {word.Wk} kernel take {len(parts)} words that keep psums",
                node=node.name,
                op="Conv",
                limit="Ci <= 256 and a kernel within an ifmap pad",
                remedy="compile with --isa extended",
            )
        relu = bool(node.integer("relu"))
        merged = relu and name != "bn" and not (self.documented and name == "dwconv")
        stages: list[Stage] = []
        for part in parts:
            first, last = part is parts[0], part is parts[-1]
            kernel = w[:, part.channels if dense else slice(None), part.rows, part.columns]
            block = _conv_block(name, kernel, bias if first else np.zeros_like(bias), shift)
            mnemonic = f"{name}_relu" if merged and last else name
            source = x.part(part.row, part.column)
            if dense:
                source = source.channel_groups(part.channels.start // LANES, part.word.Ci)
            tensor = node.output if last and merged == relu else None
            coded = replace(part.word, opcode=BY_MNEMONIC[mnemonic].opcode)
            stages.append(Stage(coded, block, node, tensor, source, keeps=not last))
        if relu and not merged:
            stages.append(self._relu_stage(node, chunk))
        return tuple(stages)

    def _relu_stage(self, node: Node, chunk: slice) -> Stage:
        _, height, width = self.windows[node.output].shape
        return Stage(_pointwise("relu", chunk.stop - chunk.start, height, width), _no_words(), node, node.output)

    # Sums and products of two maps

    def _combination(self, node: Node, followers: Sequence[Node]) -> Iterator[Job]:
        first, second = node.inputs
        if self.graph.shape(first) != self.graph.shape(node.output):
            first, second = second, first
        source, operand = self._aligned(first, node), self._operand(second, node)
        last = (node, *followers)[-1]
        result = self.views.tensors[last.output]
        for part in self._channel_parts((node, *followers), result):
            stages = (*self._combining_stages(node, part), *self._following(followers, part))
            head = replace(stages[0], source=_chunk_view(source, part))
            views = _chunk_view(result, part), _chunk_view(operand, part)
            yield Job((head, *stages[1:]), *views, self._start(last, part))

    def _aligned(self, name: str, node: Node) -> View:
        """The part of an elementwise operand that meets the computed window of the result."""
        held, wanted = self.windows[name].start, self.windows[node.output].start
        _, height, width = self.windows[node.output].shape
        view = self.views.tensors[name]
        shape = map_shape(self.graph.shape(name))
        offsets = [0 if extent == 1 else w - h for extent, w, h in zip(shape, wanted, held, strict=True)]
        moved = view.part(offsets[1], offsets[2]).channel_groups(offsets[0] // LANES, view.channels)
        return replace(moved, height=min(height, shape[1]), width=min(width, shape[2]))

    def _operand(self, name: str, node: Node) -> View:
        """The second operand, repeated over the map where it is smaller."""
        _, height, width = self.windows[node.output].shape
        return self._aligned(name, node).broadcast_to(height, width)

    def _combining_stages(self, node: Node, chunk: slice) -> tuple[Stage, ...]:
        """The word of a sum or product for a chunk of channels, and the ReLU behind it."""
        _, height, width = self.windows[node.output].shape
        channels = chunk.stop - chunk.start
        block = pack_bias_scale(np.zeros(channels, np.int32), np.full(channels, node.integer("shift")))
        mnemonic = "add" if node.op == "IntAdd" else "mul"
        word = _pointwise(mnemonic, channels, height, width)
        if not node.integer("relu"):
            return (Stage(word, block, node, node.output),)
        return (Stage(word, block, node), self._relu_stage(node, chunk))

    # Functions of one element

    def _pointwise(self, node: Node, followers: Sequence[Node]) -> Iterator[Job]:
        last = (node, *followers)[-1]
        source, result = self._aligned(node.inputs[0], node), self.views.tensors[last.output]
        for part in self._channel_parts((node, *followers), result):
            stages = list(self._following((node, *followers), part))
            stages[0] = replace(stages[0], source=_chunk_view(source, part))
            yield Job(tuple(stages), _chunk_view(result, part), None, self._start(last, part))

    def _following(self, followers: Sequence[Node], chunk: slice) -> Iterator[Stage]:
        """The words that continue on a result, for a chunk of its channels."""
        for node in followers:
            if node.op in POINTWISE:
                yield self._pointwise_stage(node, chunk)
            elif node.op == "IntConv":
                yield from self._normalising_stages(node, chunk)
            else:
                yield from self._combining_stages(node, chunk)

    def _normalising_stages(self, node: Node, chunk: slice) -> Iterator[Stage]:
        """Batch normalisation of a result, and the ReLU behind it."""
        _, height, width = self.windows[node.output].shape
        first, relu = self.windows[node.output].channels[0], bool(node.integer("relu"))
        channels = slice(first + chunk.start, first + chunk.stop)
        block = _conv_block("bn", *(self.graph.constants[name][channels] for name in node.inputs[1:]))
        word = _pointwise("bn", chunk.stop - chunk.start, height, width)
        yield Stage(word, block, node, None if relu else node.output)
        if relu:
            yield self._relu_stage(node, chunk)

    def _pointwise_stage(self, node: Node, chunk: slice) -> Stage:
        """A ReLU, a table, or slopes per channel."""
        _, height, width = self.windows[node.output].shape
        constants = [self.graph.constants[name] for name in node.inputs[1:]]
        match node.op:
            case "IntTable":
                starts, a, b = constants
                mnemonic, block = "act", pack_table(TableBlock(starts, a, b, -node.integer("shift")))
            case "IntPRelu":
                first = self.windows[node.output].channels[0]
                mnemonic = "prelu"
                block = pack_slopes(*(each[first + chunk.start : first + chunk.stop] for each in constants))
            case _:
                mnemonic, block = "relu", _no_words()
        return Stage(_pointwise(mnemonic, chunk.stop - chunk.start, height, width), block, node, node.output)

    # Words without weights

    def _max_pool(self, node: Node) -> Iterator[Job]:
        """One word a chunk of channels."""
        height, width = node.integers("kernel_shape")
        for part in self._channel_parts((node,), self.views.tensors[node.output]):
            word, x = self._word(node, "maxpool", (height, width), part, dense=False)
            result = _chunk_view(self.views.tensors[node.output], part)
            yield Job((Stage(word, _no_words(), node, node.output, x),), result, None, self._start(node, part))

    def _start(self, node: Node, chunk: slice) -> tuple[int, int, int]:
        channel, row, column = self.windows[node.output].start
        return channel + chunk.start, row, column

    def _channel_parts(self, chain: Sequence[Node], view: View) -> Iterator[slice]:
        """Channels per job of a chain of channel-wise words."""
        words, tables = sum(map(_group_words, chain)), _table_words(chain)
        constants = int(chain[0].op in ("MaxPool", "IntRelu"))
        most = min(FIELD_CHANNELS // LANES, self._held(chain[0], constants, chain))
        if words:
            most = min(most, (self.machine.weight_words - tables) // words)
        if most < 1 or tables > self.machine.weight_words:
            raise DoesNotFit(
                "E302",
                f"16 channels take {words + tables} weight words",
                node=chain[0].name,
                limit=f"weight_words = {self.machine.weight_words}",
            )
        yield from _bands(view.channels, most * LANES)

    def _held(self, node: Node, blocks: int, followers: Sequence[Node]) -> int:
        """Groups of 16 channels whose bias, scale and slopes the pads hold beside the tables of a chain.

        blocks: entries per group of its first word.
        """
        per_group = blocks + sum(_group_words(each) > 0 for each in followers)
        tables = LANES * sum(each.op == "IntTable" for each in followers)
        entries = self.machine.parameter_pad_entries
        if entries < per_group + tables:
            raise DoesNotFit(
                "E302",
                f"its chain takes {per_group + tables} entries of the bias and scale pads",
                node=node.name,
                limit=f"parameter_pad_entries = {entries}",
                remedy=f"a machine with parameter_pad_entries = {per_group + tables} (--machine FILE)",
            )
        return (entries - tables) // max(per_group, 1)

    # Concatenation

    def _copies(self, node: Node) -> Iterator[Job]:
        """Copies of the operands that are not written in place, as 1x1 max pools."""
        for name, window in self.views.copies.get(node.output, ()):
            source = self._aligned(name, node)
            for part in _bands(source.channels, FIELD_CHANNELS):
                x, y = _chunk_view(source, part), _chunk_view(window, part)
                word = _pointwise("maxpool", x.channels, x.height, x.width)
                yield Job((Stage(word, _no_words(), node, None, x),), y)

    def _selecting(self, node: Node) -> Iterator[Job]:
        """Every output channel is one input channel times 1: dense 1x1 words whose psums are kept."""
        result = self.views.tensors[node.output]
        extents = [self.graph.shape(name)[1] for name in node.inputs]
        offsets = np.cumsum([0, *extents])
        for chunk in _bands(result.channels, FIELD_CHANNELS):
            channels = chunk.stop - chunk.start
            zeros = np.zeros(channels, np.int32)
            stages: list[Stage] = []
            for name, offset, extent in zip(node.inputs, offsets, extents, strict=False):
                source = self._aligned(name, node)
                for band in _bands(extent, FIELD_CHANNELS):
                    wanted = np.arange(chunk.start, chunk.stop)[:, None] == offset + np.arange(
                        band.start, band.stop
                    )
                    if not wanted.any():
                        continue
                    x = _chunk_view(source, band)
                    word = replace(
                        _pointwise("conv", channels, x.height, x.width), Ci=x.channels, Hi=x.height, Wi=x.width
                    )
                    block = _conv_block("conv", wanted.astype(np.int8)[..., None, None], zeros, zeros)
                    stages.append(Stage(word, block, node, None, x, keeps=True))
            stages[-1] = replace(stages[-1], keeps=False, tensor=node.output)
            yield Job(tuple(stages), _chunk_view(result, chunk), None, self._start(node, chunk))


POINTWISE = ("IntRelu", "IntTable", "IntPRelu")
"""Functions of one element: they continue on any result but a pool's."""
ARRAY_OPS = ("IntConv", "IntAdd", "IntMul", "MaxPool", WORD_OP, *POINTWISE)


def _group_words(node: Node) -> int:
    """Weight words per 16 channels of a word behind a convolution."""
    words = {"IntAdd": BS_WORDS, "IntMul": BS_WORDS, "IntPRelu": SLOPE_WORDS, "IntConv": BS_WORDS + 1}
    return words.get(node.op, 0)


def _table_words(chain: Sequence[Node]) -> int:
    return TABLE_WORDS * sum(node.op == "IntTable" for node in chain)


@dataclass(frozen=True)
class Part:
    """Part of a convolution: its word, the slices of the weights, and where its window starts in the map."""

    word: Layer
    channels: slice
    rows: slice
    columns: slice
    row: int
    column: int


def split_kernel(whole: Layer, machine: Machine, *, dense: bool) -> Iterator[Part]:
    """The words that compute a convolution together, each within 256 channels and an ifmap pad.

    A band of kernel rows (or columns) is a convolution of its own over the map from a later row on, with less
    padding before it. Bands that lie in the padding altogether contribute nothing and are left out.
    """
    rows, columns = _kernel_bands(whole, machine)
    channels = _bands(whole.Ci, FIELD_CHANNELS) if dense else [slice(0, whole.Ci)]
    found = 0
    for row_band, column_band, channel_band in product(rows, columns, channels):
        row, Ph, Hi = _shifted(row_band.start * (whole.Dh + 1), whole.Ph, whole.Hi)
        column, Pw, Wi = _shifted(column_band.start * (whole.Dw + 1), whole.Pw, whole.Wi)
        if Hi <= 0 or Wi <= 0:
            continue
        found += 1
        word = replace(
            whole,
            Ph=Ph, Hi=Hi, Hk=row_band.stop - row_band.start,
            Pw=Pw, Wi=Wi, Wk=column_band.stop - column_band.start,
            Ci=channel_band.stop - channel_band.start,
        )  # fmt: skip
        yield Part(word, channel_band, row_band, column_band, row, column)
    if not found:
        raise DoesNotFit("E303", "the kernel meets nothing but padding")


def _shifted(offset: int, padding: int, extent: int) -> tuple[int, int, int]:
    """(first row, padding, rows) of the map for a band that starts `offset` rows into the kernel."""
    start = max(offset - padding, 0)
    return start, max(padding - offset, 0), extent - start


def _kernel_bands(whole: Layer, machine: Machine) -> tuple[list[slice], list[slice]]:
    """Kernel rows and columns in the fewest bands whose reach fits a pad; rows are cut before columns."""
    best: tuple[int, list[slice], list[slice]] | None = None
    for wide in range(1, whole.Wk + 1):
        reach = (wide - 1) * (whole.Dw + 1) + 1
        high = _most_taps(machine.ifmap_pad_entries // reach, whole.Dh + 1, whole.Hk)
        if reach > FIELD_MOST or not high:
            continue
        rows, columns = _bands(whole.Hk, _even(whole.Hk, high)), _bands(whole.Wk, _even(whole.Wk, wide))
        if best is None or len(rows) * len(columns) <= best[0]:
            best = len(rows) * len(columns), rows, columns
    assert best is not None  # a single tap fits every pad
    return best[1], best[2]


def _even(extent: int, most: int) -> int:
    """The size of equal bands, as few as `most` allows."""
    return -(-extent // -(-extent // most))


def _most_taps(entries: int, dilation: int, kernel: int) -> int:
    """Taps of a kernel axis whose reach is within these entries (and the 6-bit field)."""
    return min(kernel, (min(entries, FIELD_MOST) - 1) // dilation + 1 if entries else 0)


def _bands(extent: int, most: int) -> list[slice]:
    return [slice(start, min(start + most, extent)) for start in range(0, extent, most)]


def _used_channels(w: Array) -> slice:
    """The input channels, in whole words, between the first and the last with a weight (Co, Ci, ...)."""
    used = np.flatnonzero(w.any(axis=(0, *range(2, w.ndim))))
    if not len(used):
        return slice(0, min(LANES, w.shape[1]))
    return slice(int(used[0]) // LANES * LANES, min((int(used[-1]) // LANES + 1) * LANES, w.shape[1]))


def _block_chunk(w: Array, most: int) -> int:
    """Output channels per job of a convolution with block structure: the fewest multiplications, then jobs."""

    def work(size: int) -> int:
        bands = [(band, _used_channels(w[band])) for band in _bands(len(w), size)]
        return sum(groups(band.stop - band.start) * (used.stop - used.start) for band, used in bands)

    return min(range(LANES, most + 1, LANES), key=lambda size: (work(size), -size))


def _chunk_view(view: View, chunk: slice) -> View:
    return view.channel_groups(chunk.start // LANES, chunk.stop - chunk.start)


def _conv_block(name: str, w: Array, bias: Array, shift: Array) -> Array:
    weights = pack_weights(w) if name == "conv" else pack_channel_weights(w)
    return np.concatenate([pack_bias_scale(bias, shift), weights])


def _pointwise(mnemonic: str, channels: int, height: int, width: int) -> Layer:
    """A 1x1 word over a map."""
    return Layer(
        opcode=BY_MNEMONIC[mnemonic].opcode,
        Hi=height, Wi=width, Ci=channels, Ho=height, Wo=width, Co=channels, Zs=groups(channels),
    )  # fmt: skip


def _no_words() -> Array:
    return np.zeros((0, LANES), np.int8)
