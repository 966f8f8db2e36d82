"""Convolutions, depthwise convolutions and average pools as jobs, with what is fused behind them.

A layer beyond the limits of one word is split exactly: output channels into jobs, input channels and kernels into
parts whose psums are kept from word to word (extension).

Grouped convolutions, channel shuffles and concatenations whose operands start within a word become dense
convolutions with block-sparse weights. A layer word sweeps consecutive channels from the start of a DTCM word;
further layer words, which continue on the kept psums, skip the channels in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.errors import DoesNotFit, Problem, UnsupportedOperator
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import AVERAGE, BLOCKS, GROUP, PADDING, RELU
from npuc.targets.easynpu.layers.channelwise import following, held_groups, relu_stage
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS, Job, Scope, Stage, bands, chunk_view
from npuc.targets.easynpu.layers.kernels import (
    columns_of_channels,
    geometry,
    kernel_with_columns_of_channels,
    split_kernel,
    window_word,
    with_columns_of_channels,
)
from npuc.targets.easynpu.layers.nodes import conv_mnemonic, group_words, is_batch_norm, table_words
from npuc.targets.easynpu.layers.rewrites import border_weights
from npuc.targets.easynpu.layers.windows import whole
from npuc.targets.easynpu.machine.isa import BY_MNEMONIC, Layer
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, groups, pack_layer
from npuc.targets.easynpu.machine.parameters import Machine

EXTENSIONS = 3
"""Instruction words of an additional part: the layer word, `src` and `ctl`."""


def used_runs(w: Array, pixels: int) -> list[slice]:
    """The runs of input channels that a chunk of outputs (Co, Ci, Hk, Wk) reads; each starts on a DTCM word.

    A run ends where sweeping channels without weights would cost more cycles than another part. There is at least
    one.
    """
    used = np.flatnonzero(w.any(axis=(0, *range(2, w.ndim))))
    saved = groups(len(w)) * prod(w.shape[2:]) * pixels
    found: list[slice] = []
    for start in range(0, w.shape[1], LANES):
        here = used[(start <= used) & (used < start + LANES)]
        if not len(here):
            continue
        stop = int(here[-1]) + 1
        if found and (start - found[-1].stop) * saved <= _part_cycles(len(w)):
            found[-1] = slice(found[-1].start, stop)
        else:
            found.append(slice(start, stop))
    return found or [slice(0, min(LANES, w.shape[1]))]


def block_chunk(w: Array, most: int, pixels: int) -> int:
    """Output channels per job for the fewest cycles: a multiple of 16, at most `most`."""

    def cycles(size: int) -> int:
        total = 0
        for band in bands(len(w), size):
            runs, outputs = used_runs(w[band], pixels), band.stop - band.start
            swept = sum(run.stop - run.start for run in runs)
            total += groups(outputs) * prod(w.shape[2:]) * pixels * swept + len(runs) * _part_cycles(outputs)
        return total

    return min(range(LANES, most + 1, LANES), key=lambda size: (cycles(size), -size))


def _part_cycles(outputs: int) -> int:
    """Cycles of a part before it computes: its instruction words, bias and scale, and first weights."""
    return EXTENSIONS + (BS_WORDS + 1) * groups(outputs)


def convolutions(scope: Scope, node: Node, followers: Sequence[Node]) -> Iterator[Job]:
    """The jobs of a convolution or average pool and what is fused behind it, one per chunk of output channels.

    Raises DoesNotFit (E302) where the weights of 16 outputs exceed the weight DTCM and documented words cannot
    load them part by part, UnsupportedOperator (E204) where documented words cannot express a split.
    """
    w, bias, shift = (scope.graph.constants[name] for name in node.inputs[1:4])
    last = (node, *followers)[-1]
    added = next((each for each in followers if each.op == "IntAdd"), None)
    name = "avgpool" if AVERAGE(node) else _name(scope.graph, node)
    if is_batch_norm(scope.graph, node) and (scope.documented or not RELU(node)):
        name = "bn"
    result, first = scope.views.tensors[last.output], scope.windows[last.output].channels[0]
    load = load_of(scope.graph, node, scope.machine, followers, documented=scope.documented)
    size = load.outputs if load.most is not None or scope.documented else min(load.outputs, _half(scope, w))
    if BLOCKS(node) > 1 and not scope.documented:
        size = block_chunk(w[first : first + result.channels], size, prod(scope.size(node)))
    if AVERAGE(node) and not scope.documented and _is_shared(scope, node, w, bias, shift):
        size = LANES
    shares = not scope.documented and (AVERAGE(node) or len(scope.graph.readers[node.inputs[1]]) > 1)
    for chunk in scope.chunks(last, result.channels, size):
        kernels = slice(first + chunk.start, first + chunk.stop)
        stages = _conv_stages(scope, node, name, chunk, w[kernels], bias[kernels], shift[kernels], load.most)
        operand = None
        if added is not None:
            other = next(each for each in added.inputs if each != node.output)
            operand = chunk_view(scope.operand(other, added), chunk)
        stages = tuple(replace(stage, shares=shares) for stage in stages)
        stages = (*stages, *following(scope, followers, chunk))
        yield Job(stages, chunk_view(result, chunk), operand, scope.start(last, chunk))


STAYING = 16
"""Half the weight DTCM holds at least a sixteenth of all weights."""


def _half(scope: Scope, w: Array) -> int:
    """Outputs of a job whose weights (Co, Ci, Hk, Wk) take half the weight DTCM, so that others stay in the rest.

    All, where what stays from inference to inference is not worth the cycles.
    """
    half = scope.machine.weight_words // 2
    words = sum(each.nbytes for each in scope.graph.constants.values()) // LANES
    if not half < words <= STAYING * half:
        return FIELD_CHANNELS
    return max(half // (BS_WORDS + prod(w.shape[1:])), 1) * LANES


def _is_shared(scope: Scope, node: Node, w: Array, bias: Array, shift: Array) -> bool:
    """Whether a global average is computed 16 channels at a time, so that all chunks share the weight block.

    This costs instruction words (at most a layer word with `ctl`, `src` and `dst` per 16 channels and part) and
    cycles (of these words, and where two psums would hide a bubble), but saves the host from loading the other
    blocks.
    """
    alike = all((each == each[:1]).all() for each in (w, bias, shift))
    if not alike or scope.size(node) != (1, 1):
        return False
    _, parts = _parts(scope.graph, node, scope.machine)
    most = max(part.Hk * part.Wk for part in parts)  # all parts stream the words of the largest
    saved = (BS_WORDS + most - 1 - 3 * len(parts)) * LANES / scope.machine.host_bytes_per_cycle
    return saved > prod(w.shape[1:]) + len(parts) * WORD_CYCLES


@frozen
class WeightLoad:
    """The loading of a convolution's weights: outputs per job, and whether its parts are loaded in turn."""

    outputs: int
    most: int | None = None
    """Weight words that a part may take for 16 outputs; None if the parts of a job are loaded together."""


WORD_CYCLES = 16
"""Approximate cycles of a word besides its products: decoding, its weight block, its first sub-ifmap."""
MOST_GROUPS_IN_TURN = 4
"""Groups of outputs of a single pixel loaded part by part: enough that no cycle is lost between two psums."""


def load_of(
    graph: Graph, node: Node, machine: Machine, followers: Sequence[Node], *, documented: bool = False
) -> WeightLoad:
    """Outputs per job: a multiple of 16 within the limits of the word, the pads and the weight DTCM.

    Where 16 outputs exceed the weight DTCM, the parts of a job are loaded one after another. Raises DoesNotFit
    (E302) where documented words cannot express that, or the nodes fused behind take too many words.
    """
    word, parts = _parts(graph, node, machine, documented=documented)
    dense = _name(graph, node) == "conv"
    per_group = sum(BS_WORDS + part.Hk * part.Wk * (part.Ci if dense else 1) for part in parts)
    if PADDING(node):
        borders = border_weights(graph.constants[node.inputs[1]], dense=dense)
        per_group += len(parts) * sum(BS_WORDS + int(np.prod(each.shape[1:])) for each in borders)
    behind, tables = sum(group_words(each) for each in followers), table_words(followers)
    most = min(FIELD_CHANNELS // LANES, machine.weight_pad_entries, machine.psum_entries)
    most = min(most, held_groups(machine, node, 1, followers))
    fitting = min(most, (machine.weight_words - tables) // (per_group + behind))
    if fitting >= 1:
        return WeightLoad(fitting * LANES)
    together = min(most, MOST_GROUPS_IN_TURN, word.Zs) if (word.Ho, word.Wo) == (1, 1) else 1
    for count in range(0 if documented else together, 0, -1):
        room = (machine.weight_words - tables) // count - behind
        if room >= BS_WORDS + (LANES if dense else max(part.Hk * part.Wk for part in parts)):
            return WeightLoad(count * LANES, room)
    needed = per_group + behind + tables
    raise DoesNotFit(
        "E302",
        f"16 outputs take {needed} weight words",
        node=node.name,
        op="Conv",
        limit=f"weight_words = {machine.weight_words}",
        remedy=("compile with --isa extended, or use " if documented else "")
        + f"a machine with weight_words = {needed} (--machine FILE)",
    )


def expect_documented(graph: Graph, node: Node, machine: Machine, followers: Sequence[Node]) -> Iterator[Problem]:
    """The reasons why documented words cannot compute a convolution with any tile (E204, E302)."""
    word, parts = _parts(graph, node, machine, documented=True)
    spans = _name(graph, node) == "conv" and BLOCKS(node) > 1  # a job sweeps the channels that have weights
    if PADDING(node) or (len(parts) > 1 and not spans):
        yield from _several_words(node, word, len(parts) + bool(PADDING(node))).problems
        return
    try:
        load_of(graph, node, machine, followers, documented=True)
    except DoesNotFit as error:
        yield from error.problems


def _several_words(node: Node, word: Layer, parts: int) -> UnsupportedOperator:
    return UnsupportedOperator(
        "E204",
        f"{word.Ci} channels and a {word.Hk} x {word.Wk} kernel take {parts} words that keep psums",
        node=node.name,
        op="Conv",
        limit="Ci <= 256 and a kernel within an ifmap pad",
        remedy="compile with --isa extended" + (", or --allow split_average_pool" if AVERAGE(node) else ""),
    )


def parts_in_turn(graph: Graph, node: Node, machine: Machine, followers: Sequence[Node]) -> tuple[Layer, ...]:
    """The words of a convolution that is loaded part by part, whose map must be one tile; none for other nodes."""
    if node.op != "IntConv" or (most := load_of(graph, node, machine, followers).most) is None:
        return ()
    _, parts = _parts(graph, node, machine, most)
    return tuple(replace(part, Zs=1) for part in parts)


def _parts(
    graph: Graph, node: Node, machine: Machine, most: int | None = None, *, documented: bool = False
) -> tuple[Layer, list[Layer]]:
    """The word of a whole convolution, and the words that it is split into for 16 outputs."""
    name, kernel = _name(graph, node), graph.shape(node.inputs[1])[2:]
    x, y = whole(graph, node.inputs[0]), whole(graph, node.output)
    fields, _, _ = geometry(node, x, y, x, (kernel[0], kernel[1]))
    dense, word = name == "conv", Layer(opcode=BY_MNEMONIC[name].opcode, **fields)
    read = with_columns_of_channels(word, columns_of_channels(word, machine)) if documented and dense else word
    return word, [part.word for part in split_kernel(read, machine, dense=dense, most=most)]


def _name(graph: Graph, node: Node) -> str:
    group, outputs = GROUP(node), graph.shape(node.inputs[1])[0]
    return conv_mnemonic(group, graph.shape(node.inputs[0])[1], outputs)


def _conv_stages(
    scope: Scope, node: Node, name: str, chunk: slice, w: Array, bias: Array, shift: Array, most: int | None
) -> tuple[Stage, ...]:
    """The words of one job: parts whose psums are kept, the first with the bias, the last with the ReLU.

    most: weight words that a part may take for 16 outputs where parts are loaded one after another.
    """
    dense = name == "conv"
    w = w[:, slice(*scope.windows[node.inputs[0]].channels)] if dense else w
    word, x = window_word(scope, node, name, w.shape[2:], chunk, dense=dense)
    m = columns_of_channels(word, scope.machine) if scope.documented and dense else 1
    if m > 1:
        word, w = with_columns_of_channels(word, m), kernel_with_columns_of_channels(w, m)
    runs = bands(w.shape[1], scope.most_read if dense and most is None and m == 1 else w.shape[1])
    if dense and BLOCKS(node) > 1 and not scope.documented:
        runs = used_runs(w, prod(scope.size(node)))
    parts = [
        replace(part, channels=slice(run.start + part.channels.start, run.start + part.channels.stop))
        for run in runs
        for part in split_kernel(
            replace(word, Ci=run.stop - run.start) if dense else word, scope.machine, dense=dense, most=most
        )
    ]
    if scope.documented and len(parts) > 1:
        raise _several_words(node, word, len(parts))
    relu = bool(RELU(node))
    merged = relu and name != "bn" and not (scope.documented and name == "dwconv")
    stages: list[Stage] = []
    if PADDING(node):
        bias = bias + (PADDING(node) * w.astype(np.int64).reshape(len(w), -1).sum(axis=1)).astype(np.int32)
        stages += _border_stages(scope, node, word, w, bias, dense=dense, most=most)
    for part in parts:
        first, last = not stages, part is parts[-1]
        kernel = w[:, part.channels if dense else slice(None), part.rows, part.columns]
        block = pack_layer(kernel, bias if first else np.zeros_like(bias), shift, dense=dense)
        mnemonic = f"{name}_relu" if merged and last else name
        source = x.part(part.row, part.column)
        if m == 1:
            source = source.channel_groups(part.channels.start // LANES, part.word.Ci)
        tensor = node.output if last and merged == relu else None
        coded = replace(part.word, opcode=BY_MNEMONIC[mnemonic].opcode)
        stages.append(Stage(coded, block, node, tensor, source, keeps=not last))
    if relu and not merged:
        stages.append(relu_stage(scope, node, chunk))
    return tuple(stages)


def _border_stages(
    scope: Scope, node: Node, word: Layer, w: Array, bias: Array, *, dense: bool, most: int | None
) -> Iterator[Stage]:
    """The words that add what the padding value contributes, the first with the bias; all keep their psums."""
    pixel = scope.views.tensors[node.inputs[-1]]
    none = np.zeros(len(w), np.int8)
    for weights in border_weights(w, dense=dense):
        opcode = BY_MNEMONIC["conv" if dense else "dwconv"].opcode
        border = replace(word, opcode=opcode, Ci=weights.shape[1] if dense else word.Co)
        for part in split_kernel(border, scope.machine, dense=dense, most=most):
            kernel = weights[:, part.channels if dense else slice(None), part.rows, part.columns]
            source = pixel.pixel_for(part.word.Ci, part.word.Hi, part.word.Wi)
            yield Stage(part.word, pack_layer(kernel, bias, none, dense=dense), node, None, source, keeps=True)
            bias = np.zeros_like(bias)
