"""From integer nodes to jobs: a job is a chain of fused layer words with the weight blocks they stream.

Source: easynpu, opcode table and Fused layers. A convolution followed by an addition and a ReLU becomes three
words of which the first two carry the fused flag; each stage produces int8 exactly as if it stood alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.windows import window_of
from npuc.targets.easynpu.isa import BY_MNEMONIC, Layer
from npuc.targets.easynpu.memory import groups, pack_bias_scale, pack_channel_weights, pack_weights

DEVICE_OPS = ("IntConv", "IntAdd", "IntRelu", "MaxPool")


@dataclass(frozen=True)
class Stage:
    """One layer word without tile and flags, its block of the weight stream, and what it computes."""

    word: Layer
    block: Array
    node: Node
    tensor: str | None
    """The int8 tensor it produces; None for a value that exists only between two stages."""


@dataclass(frozen=True)
class Job:
    """A fused chain: reads `source`, perhaps adds `operand`, writes `result`."""

    stages: tuple[Stage, ...]
    source: str
    result: str
    operand: str | None = None


def map_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(C, H, W) of a tensor (1, C, H, W) or (1, C)."""
    channels, height, width = (*shape[1:], 1, 1)[:3]
    return channels, height, width


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether an int8 reshape leaves every word in its place: (1, C, 1, 1) and (1, C)."""
    if node.op != "Reshape" or graph.tensors[node.output].dtype != "int8":
        return False
    before, after = graph.shape(node.inputs[0]), graph.shape(node.output)
    vectors = all(shape[:1] == (1,) and np.prod(shape[2:]) == 1 for shape in (before, after))
    return before == after or (vectors and before[:2] == after[:2])


def runs_on_array(graph: Graph, node: Node) -> bool:
    """Whether a node of the integer graph is executed by the PE array (or costs nothing at all)."""
    return is_alias(graph, node) or (node.op in DEVICE_OPS and graph.tensors[node.output].dtype == "int8")


def geometry(node: Node, x: Sequence[int], y: Sequence[int], kernel: tuple[int, int]) -> dict[str, int]:
    """The layer word's fields for a window over a feature map; padding after the map is implied by Ho and Wo."""
    window = window_of(node, kernel)
    channels, height, width = map_shape(x)
    outputs, rows, columns = map_shape(y)
    return {
        "Sh": window.strides[0], "Sw": window.strides[1],
        "Ph": window.begins[0], "Pw": window.begins[1],
        "Dh": window.dilations[0] - 1, "Dw": window.dilations[1] - 1,
        "Hk": kernel[0], "Wk": kernel[1],
        "Hi": height, "Wi": width, "Ci": channels,
        "Ho": rows, "Wo": columns, "Co": outputs, "Zs": groups(outputs),
    }  # fmt: skip


def conv_mnemonic(group: int, channels: int, outputs: int) -> str:
    """Depthwise where every channel is its own group, dense where there is one group."""
    return "dwconv" if group == channels == outputs and group > 1 else "conv"


def select(graph: Graph, nodes: Sequence[Node], *, documented: bool) -> list[Job]:
    """The jobs of a run of integer nodes, in order. documented: only words that the document defines."""
    fused = _fused_adds(graph, nodes)
    inner = {id(producer) for producer in fused.values()}
    jobs: list[Job] = []
    for node in nodes:
        if id(node) in inner or is_alias(graph, node):
            continue
        producer = fused.get(node.output)
        if producer is None:
            stages = _stages(graph, node, documented)
            operand = node.inputs[1] if node.op == "IntAdd" else None
            jobs.append(Job(stages, node.inputs[0], node.output, operand))
        else:
            operand = next(name for name in node.inputs if name != producer.output)
            stages = (*_stages(graph, producer, documented), *_stages(graph, node, documented))
            jobs.append(Job(stages, producer.inputs[0], node.output, operand))
    return jobs


def _fused_adds(graph: Graph, nodes: Sequence[Node]) -> Mapping[str, Node]:
    """For the result of each addition that continues on a convolution's psums: that convolution."""
    present = {id(node) for node in nodes}
    found: dict[str, Node] = {}
    for node in nodes:
        if node.op == "IntAdd" and "fused_input" in node.attrs:
            producer = graph.producers.get(node.inputs[node.integer("fused_input")])
            if producer is None or id(producer) not in present or producer.op != "IntConv":
                continue
            if graph.only_reader(producer.output) is node and node.inputs[0] != node.inputs[1]:
                found[node.output] = producer
    return found


def _stages(graph: Graph, node: Node, documented: bool) -> tuple[Stage, ...]:
    match node.op:
        case "IntConv":
            return _conv_stages(graph, node, documented)
        case "MaxPool":
            kernel = node.integers("kernel_shape")
            shapes = graph.shape(node.inputs[0]), graph.shape(node.output)
            word = Layer(opcode=BY_MNEMONIC["maxpool"].opcode, **geometry(node, *shapes, (kernel[0], kernel[1])))
            return (Stage(word, _no_words(), node, node.output),)
        case "IntAdd":
            channels = map_shape(graph.shape(node.output))[0]
            block = pack_bias_scale(np.zeros(channels, np.int32), np.full(channels, node.integer("shift")))
            stage = Stage(_pointwise(graph, node, "add"), block, node, node.output)
            return _with_relu(graph, stage) if node.integer("relu") else (stage,)
        case "IntRelu":
            return (Stage(_pointwise(graph, node, "relu"), _no_words(), node, node.output),)
        case _:
            raise KeyError(node.op)


def _conv_stages(graph: Graph, node: Node, documented: bool) -> tuple[Stage, ...]:
    w, bias, shift = (graph.constants[name] for name in node.inputs[1:])
    x, y = graph.shape(node.inputs[0]), graph.shape(node.output)
    name = conv_mnemonic(node.integer("group", 1), x[1], y[1])
    relu = bool(node.integer("relu"))
    if node.integer("average"):
        name, weights = "avgpool", pack_channel_weights(w)
    else:
        weights = pack_channel_weights(w) if name == "dwconv" else pack_weights(w)
    merged = relu and not (documented and name == "dwconv")
    word = Layer(
        opcode=BY_MNEMONIC[f"{name}_relu" if merged else name].opcode, **geometry(node, x, y, w.shape[2:])
    )
    block = np.concatenate([pack_bias_scale(bias, shift), weights])
    stage = Stage(word, block, node, node.output)
    return _with_relu(graph, stage) if relu and not merged else (stage,)


def _with_relu(graph: Graph, stage: Stage) -> tuple[Stage, Stage]:
    """The stage followed by a ReLU word: the value between them is no tensor of the graph."""
    before = Stage(stage.word, stage.block, stage.node, None)
    return before, Stage(_pointwise(graph, stage.node, "relu"), _no_words(), stage.node, stage.tensor)


def _pointwise(graph: Graph, node: Node, mnemonic: str) -> Layer:
    """A 1x1 channel-wise word over the node's output map."""
    channels, height, width = map_shape(graph.shape(node.output))
    return Layer(
        opcode=BY_MNEMONIC[mnemonic].opcode,
        Hi=height, Wi=width, Ci=channels, Ho=height, Wo=width, Co=channels, Zs=groups(channels),
    )  # fmt: skip


def _no_words() -> Array:
    return np.zeros((0, 16), np.int8)
