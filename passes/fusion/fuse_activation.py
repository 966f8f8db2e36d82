"""Fuses Relu and Clip into the operator before them."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, DILATIONS
from npuc.passes.recognition.recognise_activations import merge_limits
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

FUSABLE = frozenset(("Conv", "ConvTranspose", "Gemm", "Add"))


def fuse_activation(graph: Graph) -> Graph:
    """Relu or Clip as the attribute `activation` of the Conv, ConvTranspose, Gemm or Add whose only reader it is.

    Several in a row are merged first. An activation after a MaxPool moves before it: both are monotonic, so they
    commute.
    """
    return rewrite(rewrite(graph, merge_limits), _fuse, _swap_with_pool)


def _fusable(rewriter: Rewriter, tensor: str) -> Node | None:
    """The tensor's producer, if an activation can become part of it."""
    producer = rewriter.private(tensor)
    if producer is None or producer.op not in FUSABLE or ACTIVATION(producer):
        return None
    return producer if only_float(rewriter, tensor) else None


def _fuse(rewriter: Rewriter, node: Node) -> bool:
    producer = _fusable(rewriter, node.inputs[0]) if node.op in ("Relu", "Clip") else None
    if producer is None:
        return False
    attrs: dict[str, Attr] = {**producer.attrs, "activation": node.op}
    attrs |= {key: node.attrs[key] for key in ("min", "max") if node.op == "Clip" and key in node.attrs}
    sources = rewriter.sources(producer, node)
    rewriter.replace(node, replace(producer, outputs=node.outputs, attrs=attrs, sources=sources))
    return True


def _swap_with_pool(rewriter: Rewriter, node: Node) -> bool:
    """Relu or Clip of a MaxPool of an operator that can absorb it."""
    pool = rewriter.private(node.inputs[0]) if node.op in ("Relu", "Clip") else None
    if pool is None or pool.op != "MaxPool" or _fusable(rewriter, pool.inputs[0]) is None:
        return False
    if max(DILATIONS(pool) or (1,)) > 1:
        return False  # all taps of a window may lie in the padding, where the limits matter
    early = rewriter.fresh(f"{pool.inputs[0]}/{node.op.lower()}")
    limited = replace(node, inputs=pool.inputs, outputs=(early,))
    rewriter.replace(node, limited, replace(pool, inputs=(early,), outputs=node.outputs))
    return True
