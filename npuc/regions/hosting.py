"""Checks whether the host can run a model or a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npuc.errors import NpucError, Problem
from npuc.frontend.model import ImportedModel, ImportedNode
from npuc.onnx_files.external_weights import without_weights
from npuc.reference import session
from npuc.regions import graphs
from npuc.regions.planning import ModelPlan
from npuc.samples.loading import synthetic


def expect_host(plan: ModelPlan) -> None:
    """Raises what the target refuses if onnxruntime cannot run the model either.

    Where an input may choose a branch, onnxruntime's refusal is the last problem: shapes may exclude one branch.
    onnxruntime may load even an inconsistent model (E105), so such a model must also run on a sample.
    """
    network = plan.network
    refused = [each for each in plan.causes if each.code.startswith("E")]
    if plan.on_host or not refused:
        return
    contradicts = any(each.code == "E105" for each in refused)
    outputs = list(network.outputs)
    found = _refusal(network, network.nodes, outputs, once=contradicts)
    plan.on_host = found is None
    if found is not None:
        remedy = _binding(network)
        told = () if remedy is None else (Problem("E105", found, remedy=remedy),)
        raise NpucError.of((*refused, *told))


def _binding(network: ImportedModel) -> str | None:
    """The flag that may choose a branch of the model, if it has both branches and scalar inputs."""
    scalars = [name for name in network.inputs if name in network.types and network.types[name].size == 1]
    if not scalars or not any(node.op == "If" for node in network.nodes):
        return None
    return f"if an input chooses a branch, bind it: --bind {scalars[0]}=VALUE"


def loads(network: ImportedModel, node: ImportedNode) -> bool:
    """Whether onnxruntime loads a node, and, if it seems inconsistent, runs it."""
    if any(name not in network.protos and name not in network.constants for name in node.reads):
        return True  # only the tensor's producer knows its type: the producer's result decides
    contradicts = node.problem is not None and node.problem.code == "E105"
    return _refusal(network, [node], node.writes, once=contradicts) is None


def _refusal(
    network: ImportedModel, nodes: Sequence[ImportedNode], outputs: Sequence[str], *, once: bool
) -> str | None:
    """Why onnxruntime does not load these nodes; None if it does.

    once: whether it must also run them on a synthetic sample.
    """
    written = {name for node in nodes for name in node.writes}
    try:
        found: Any = session(
            *without_weights(graphs.region_model(network, nodes, [*written.intersection(outputs)])), confined=True
        )
        if once:
            found.run(None, _sample(network, [each.name for each in found.get_inputs()]))
    except NpucError as error:
        return error.problems[0].reason
    return None


def _sample(network: ImportedModel, names: Sequence[str]) -> dict[str, Any]:
    """A synthetic value for each of these tensors."""
    found = synthetic({name: network.types[name] for name in names}, 1)
    return {name: values[0, ...] for name, values in found.inputs.items()}
