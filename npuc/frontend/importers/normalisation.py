"""Normalisations."""

from __future__ import annotations

from npuc.frontend.builder import Builder, OnnxNode
from npuc.frontend.importers.table import Importer, same


def _batch_normalization(node: OnnxNode, to: Builder) -> None:
    """Inference only: one output, statistics per channel."""
    if node.attrs.get("training_mode"):
        raise node.unsupported("training mode", limit="inference")
    if not node.attrs.get("spatial", 1):
        raise node.unsupported("statistics per activation (spatial = 0)", limit="statistics per channel")
    to.emit(node, "BatchNormalization", node.inputs, epsilon=node.attrs["epsilon"])


IMPORTERS: dict[str, Importer] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": same("epsilon"),
    "LRN": same("alpha", "beta", "bias", "size"),
}
