"""Sums, products, pointwise functions and max pools as jobs, and the stages fused behind a result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from npuc.errors import DoesNotFit
from npuc.ir import Node
from npuc.ops.attributes import KERNEL_SHAPE, RELU, SHIFT
from npuc.targets.easynpu.layers.jobs import (
    FIELD_CHANNELS,
    Job,
    Scope,
    Stage,
    chunk_view,
    no_words,
    pointwise_word,
)
from npuc.targets.easynpu.layers.kernels import window_word
from npuc.targets.easynpu.layers.nodes import POINTWISE, group_words, table_words
from npuc.targets.easynpu.layers.views import MapView
from npuc.targets.easynpu.machine.memory import (
    LANES,
    TableBlock,
    pack_bias_scale,
    pack_layer,
    pack_slopes,
    pack_table,
)
from npuc.targets.easynpu.machine.parameters import Machine


def combination(scope: Scope, node: Node, followers: Sequence[Node]) -> Iterator[Job]:
    """The sum or product of two maps and what is fused behind it; the smaller operand is broadcast."""
    first, second = node.inputs
    if scope.graph.shape(first) != scope.graph.shape(node.output):
        first, second = second, first
    source, operand = scope.aligned(first, node), scope.operand(second, node)
    last = (node, *followers)[-1]
    result = scope.views.tensors[last.output]
    for part in _channel_parts(scope, (node, *followers), result):
        stages = (*_combining_stages(scope, node, part), *following(scope, followers, part))
        head = replace(stages[0], source=chunk_view(source, part))
        views = chunk_view(result, part), chunk_view(operand, part)
        yield Job((head, *stages[1:]), *views, scope.start(last, part))


def _combining_stages(scope: Scope, node: Node, chunk: slice) -> tuple[Stage, ...]:
    """The word of a sum or product for a chunk of channels, and the ReLU behind it."""
    height, width = scope.size(node)
    channels = chunk.stop - chunk.start
    block = pack_bias_scale(np.zeros(channels, np.int32), np.full(channels, SHIFT(node)))
    mnemonic = "add" if node.op == "IntAdd" else "mul"
    word = pointwise_word(mnemonic, channels, height, width)
    if not RELU(node):
        return (Stage(word, block, node, node.output),)
    return (Stage(word, block, node), relu_stage(scope, node, chunk))


def weighted_sum(scope: Scope, node: Node, followers: Sequence[Node]) -> Iterator[Job]:
    """The sum of two maps, each times a factor: two depthwise 1x1 words, of which the first keeps its psums."""
    factors, bias = (scope.graph.constants[name] for name in node.inputs[2:])
    last, shift = (node, *followers)[-1], SHIFT(node)
    result = scope.views.tensors[last.output]
    height, width = scope.size(node)
    for part in _channel_parts(scope, (node, *followers), result):
        channels = part.stop - part.start
        stages: list[Stage] = []
        for name, factor, offset in zip(node.inputs[:2], factors, (bias, 0), strict=True):
            final = bool(stages)
            word = pointwise_word("dwconv_relu" if final and RELU(node) else "dwconv", channels, height, width)
            weights = np.full((channels, 1, 1, 1), factor, np.int8)
            scale = np.full(channels, shift if final else 0, np.int8)
            block = pack_layer(weights, np.full(channels, offset, np.int32), scale, dense=False)
            source = chunk_view(scope.operand(name, node), part)
            stages.append(Stage(word, block, node, node.output if final else None, source, keeps=not final))
        stages += following(scope, followers, part)
        yield Job(tuple(stages), chunk_view(result, part), None, scope.start(last, part))


def pointwise(scope: Scope, node: Node, followers: Sequence[Node]) -> Iterator[Job]:
    """A pointwise function and what is fused behind it."""
    last = (node, *followers)[-1]
    source, result = scope.aligned(node.inputs[0], node), scope.views.tensors[last.output]
    for part in _channel_parts(scope, (node, *followers), result):
        stages = list(following(scope, (node, *followers), part))
        stages[0] = replace(stages[0], source=chunk_view(source, part))
        yield Job(tuple(stages), chunk_view(result, part), None, scope.start(last, part))


def following(scope: Scope, followers: Sequence[Node], chunk: slice) -> Iterator[Stage]:
    """The stages of fused nodes, for a chunk of the channels."""
    for node in followers:
        if node.op in POINTWISE:
            yield _pointwise_stage(scope, node, chunk)
        elif node.op == "IntConv":
            yield from _normalising_stages(scope, node, chunk)
        else:
            yield from _combining_stages(scope, node, chunk)


def _normalising_stages(scope: Scope, node: Node, chunk: slice) -> Iterator[Stage]:
    """Batch normalisation of a result, and the ReLU behind it."""
    height, width = scope.size(node)
    first, relu = scope.windows[node.output].channels[0], bool(RELU(node))
    channels = slice(first + chunk.start, first + chunk.stop)
    block = pack_layer(*(scope.graph.constants[name][channels] for name in node.inputs[1:]), dense=False)
    word = pointwise_word("bn", chunk.stop - chunk.start, height, width)
    yield Stage(word, block, node, None if relu else node.output)
    if relu:
        yield relu_stage(scope, node, chunk)


def _pointwise_stage(scope: Scope, node: Node, chunk: slice) -> Stage:
    """The stage of a ReLU, an activation table or per-channel slopes."""
    height, width = scope.size(node)
    constants = [scope.graph.constants[name] for name in node.inputs[1:]]
    match node.op:
        case "IntTable":
            starts, a, b = constants
            mnemonic, block = "act", pack_table(TableBlock(starts, a, b, -SHIFT(node)))
        case "IntPRelu":
            first = scope.windows[node.output].channels[0]
            mnemonic = "prelu"
            block = pack_slopes(*(each[first + chunk.start : first + chunk.stop] for each in constants))
        case _:
            mnemonic, block = "relu", no_words()
    return Stage(pointwise_word(mnemonic, chunk.stop - chunk.start, height, width), block, node, node.output)


def relu_stage(scope: Scope, node: Node, chunk: slice) -> Stage:
    """The ReLU of a node whose own word cannot apply it."""
    height, width = scope.size(node)
    return Stage(pointwise_word("relu", chunk.stop - chunk.start, height, width), no_words(), node, node.output)


def max_pool(scope: Scope, node: Node) -> Iterator[Job]:
    """The jobs of a max pool: one word per chunk of channels."""
    height, width = KERNEL_SHAPE(node)
    for part in _channel_parts(scope, (node,), scope.views.tensors[node.output]):
        word, x = window_word(scope, node, "maxpool", (height, width), part, dense=False)
        result = chunk_view(scope.views.tensors[node.output], part)
        yield Job((Stage(word, no_words(), node, node.output, x),), result, None, scope.start(node, part))


def _channel_parts(scope: Scope, chain: Sequence[Node], view: MapView) -> Iterator[slice]:
    """The channels of each job of a chain of channel-wise words.

    Raises DoesNotFit (E302) where 16 channels exceed the weight DTCM.
    """
    words, tables = sum(map(group_words, chain)), table_words(chain)
    constants = int(chain[0].op in ("MaxPool", "IntRelu"))
    most = min(FIELD_CHANNELS // LANES, held_groups(scope.machine, chain[0], constants, chain))
    if words:
        most = min(most, (scope.machine.weight_words - tables) // words)
    if most < 1 or tables > scope.machine.weight_words:
        raise DoesNotFit(
            "E302",
            f"16 channels take {words + tables} weight words",
            node=chain[0].name,
            limit=f"weight_words = {scope.machine.weight_words}",
        )
    yield from scope.chunks(chain[-1], view.channels, most * LANES)


def held_groups(machine: Machine, node: Node, blocks: int, followers: Sequence[Node]) -> int:
    """Groups of 16 channels whose bias, scale and slopes fit the pads beside the tables of a chain.

    blocks: pad entries per group of the chain's first word. Raises DoesNotFit (E302) where no group fits.
    """
    per_group = blocks + sum(group_words(each) > 0 for each in followers)
    tables = LANES * sum(each.op == "IntTable" for each in followers)
    entries = machine.parameter_pad_entries
    if entries < per_group + tables:
        raise DoesNotFit(
            "E302",
            f"its chain takes {per_group + tables} entries of the bias and scale pads",
            node=node.name,
            limit=f"parameter_pad_entries = {entries}",
            remedy=f"a machine with parameter_pad_entries = {per_group + tables} (--machine FILE)",
        )
    return (entries - tables) // per_group if per_group else FIELD_CHANNELS // LANES
