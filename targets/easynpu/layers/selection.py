"""From integer nodes to jobs: which words compute each node, alone or fused behind another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npuc.ir import Node
from npuc.targets.easynpu.layers.addressing import concat_offsets
from npuc.targets.easynpu.layers.channelwise import combination, max_pool, pointwise, weighted_sum
from npuc.targets.easynpu.layers.concatenation import copies, selecting
from npuc.targets.easynpu.layers.convolutions import convolutions
from npuc.targets.easynpu.layers.fusion import POINTWISE, fused_behind
from npuc.targets.easynpu.layers.jobs import Job, Scope, Stage, no_words
from npuc.targets.easynpu.layers.operators import WORD_OP, word_of
from npuc.targets.easynpu.layers.reshaping import with_fused_reshapes


def select(scope: Scope) -> list[Job]:
    """The jobs of a run of array nodes, in order.

    Raises DoesNotFit (E302) for a layer whose weights exceed the weight DTCM even for 16 outputs,
    UnsupportedOperator (E204) for a split that documented words cannot express.
    """
    before = fused_behind(scope.graph, scope.nodes, scope.machine)
    inner = set(before.values())
    found: list[Job] = []
    for node in scope.nodes:
        if node not in inner:
            chain = [node]
            while chain[0] in before:
                chain.insert(0, before[chain[0]])
            found += _jobs(scope, chain[0], chain[1:])
    return with_fused_reshapes(scope, found)


def _jobs(scope: Scope, head: Node, followers: Sequence[Node]) -> Iterator[Job]:
    """The jobs of one node, with the nodes that are fused behind it."""
    match head.op:
        case "IntConv":
            yield from convolutions(scope, head, followers)
        case "IntAdd" | "IntMul":
            yield from combination(scope, head, followers)
        case "IntSum":
            yield from weighted_sum(scope, head, followers)
        case "MaxPool":
            yield from max_pool(scope, head)
        case op if op in POINTWISE:
            yield from pointwise(scope, head, followers)
        case op if op == WORD_OP:
            source, result = scope.views.tensors[head.inputs[0]], scope.views.tensors[head.output]
            yield Job((Stage(word_of(head), no_words(), head, head.output, source),), result)
        case "Concat" if head.output in scope.views.copies and concat_offsets(scope.graph, head) is None:
            yield from selecting(scope, head)
        case "Concat" | "DepthToSpace":
            yield from copies(scope, head)
        case _:
            return
