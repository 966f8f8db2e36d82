"""Assembly of a program from its parts, with its report: the parts' combined costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from npuc.errors import NpucError
from npuc.frontend.model import ImportedModel, ImportedNode
from npuc.frozen import frozen
from npuc.ir import Graph
from npuc.program import DTYPES, OBJECT, STRING, Program, canonical_json
from npuc.regions import graphs, partition
from npuc.regions.artefact import HOST, NPU, Contents, ProgramPart, embed_part, part_path, region_path
from npuc.regions.planning import Key, ModelPlan, key_of, part_macs, read_outside
from npuc.regions.running import part_tensor
from npuc.samples.loading import Samples
from npuc.storage.mapped import Content, Files
from npuc.target import Options

if TYPE_CHECKING:
    import onnx


@frozen
class LoweredPart:
    """An NPU part: its float graph after the passes, the samples that calibrated it, and its program."""

    graph: Graph
    samples: Samples
    program: Program


def lone_program(
    plan: ModelPlan, parts: Sequence[partition.Part], lowered: Mapping[Key, LoweredPart]
) -> Program | None:
    """The program of the only part, if that is the whole network; None if the host has a part too."""
    if not parts or not parts[0].on_npu:
        return None
    network = plan.network
    found = lowered[key_of(network, read_outside(network, parts), parts[0])]
    if not is_whole(plan, parts, found.graph):
        return None
    return _add_report(found.program, network, parts[0], _told_part(network, parts[0], None, found), plan.options)


def is_whole(plan: ModelPlan, parts: Sequence[partition.Part], graph: Graph) -> bool:
    """Whether these parts, of which the first has this graph, are the whole model on the NPU."""
    network = plan.network
    return (
        len(parts) == 1
        and len(parts[0].blocks) == len(network.nodes)
        and graph.inputs == network.inputs
        and graph.outputs == network.outputs
    )


def _add_report(
    program: Program, network: ImportedModel, part: partition.Part, told: _Told, options: Options
) -> Program:
    """A part's program with its report on what runs where, and with the model's bound inputs."""
    report = program.manifest["report"]
    host = part_macs(network, part) - told.macs
    told_of = {**shares([told], told.macs, host, report["macs"]), **utilisation(report, told.macs)}
    return replace(program, manifest={**program.manifest, **_bindings(options), "report": {**report, **told_of}})


def _bindings(options: Options) -> dict[str, Any]:
    """The manifest's entries of the inputs that are bound to constants or described; empty without any."""
    bound = {"bound": dict(options.bind)} if options.bind else {}
    return bound | ({"images": [each.as_json() for each in options.input]} if options.input else {})


def assemble(plan: ModelPlan, parts: Sequence[partition.Part], lowered: Mapping[Key, LoweredPart]) -> Program:
    """The program of all parts. Raises UnsupportedOperator (E201) for a region that onnxruntime cannot load."""
    network, files, evidence = plan.network, dict[str, Content](), dict[str, Content]()
    steps: list[ProgramPart] = []
    told: list[_Told] = []
    programs: list[Program] = []
    numbers, outside = {True: 0, False: 0}, read_outside(network, parts)
    for part in parts:
        number = numbers[part.on_npu]
        numbers[part.on_npu] += 1
        if part.on_npu:
            found = lowered[key_of(network, outside, part)]
            step = ProgramPart(NPU, part_path(number), tuple(found.graph.inputs), tuple(found.graph.outputs))
            told.append(_told_part(network, part, step.path, found))
            programs.append(_add_report(found.program, network, part, told[-1], plan.options))
            data, proof = embed_part(step.path, programs[-1])
            files |= data.contents
            evidence |= proof.contents
        else:
            nodes = [network.by_name[name] for name in part.blocks]
            step = _region_step(network, nodes, region_path(number), outside)
            files[step.path] = region_bytes(network, nodes, step)
            told.append(_told_region(network, part, step))
        steps.append(step)
    reports = [each.manifest["report"] for each in programs]
    npu = sum(each.macs for each in told if each.place == NPU)
    host = sum(part_macs(network, part) for part in parts) - npu
    executed = sum(each["executed_macs"] for each in reports) - sum(each["macs"] for each in reports) + npu
    report = merge_reports(reports, plan.target.name, _machine(plan), plan.target.memories)
    manifest = {
        "target": plan.target.name,
        "precision": plan.options.precision,
        "machine": plan.target.machine_values(plan.options.machine),
        **Contents(tuple(steps), {name: name for name in network.outputs}).as_json(),
        "inputs": [_port(network, name) for name in network.inputs],
        "outputs": [_port(network, name) for name in network.outputs],
        "report": {**report, **shares(told, npu, host, executed), "proof": _proven(reports)},
        **_bindings(plan.options),
    }
    whole = {"graph.json": canonical_json(_graph(programs))}
    return Program(manifest, Files(files), Files({**evidence, **whole}))


def _machine(plan: ModelPlan) -> str:
    return str(plan.target.machine_values(plan.options.machine).get("name", plan.options.machine or "default"))


def _region_step(
    network: ImportedModel, nodes: Sequence[ImportedNode], path: str, wanted: set[str]
) -> ProgramPart:
    written = [name for node in nodes for name in node.writes]
    inputs = graphs.crossing_inputs(network, nodes, on_npu=False)
    outputs = tuple(name for name in dict.fromkeys(written) if name in wanted)
    return ProgramPart(HOST, path, tuple(inputs), outputs, tuple(sorted({*graphs.custom_operators(nodes)})))


def region_bytes(network: ImportedModel, nodes: Sequence[ImportedNode], step: ProgramPart) -> bytes:
    """The region's model, which onnxruntime loads. Raises UnsupportedOperator (E201) for what it refuses."""
    from npuc.reference import session

    data = graphs.region_model(network, nodes, step.outputs).SerializeToString(deterministic=True)
    try:
        session(data, confined=True)
    except NpucError as error:
        problems = [node.problem for node in nodes if node.problem is not None and node.problem.code[1] in "12"]
        if not problems:
            raise
        said = error.problems[0].reason
        raise NpucError.of([replace(each, reason=f"{each.reason}; {said}") for each in problems]) from None
    return data


def _told_part(network: ImportedModel, part: partition.Part, path: str | None, found: LoweredPart) -> _Told:
    report = found.program.manifest["report"]
    left = {step["node"] for step in report["host_steps"]}
    left -= {node for layer in report["layers"] for node in layer["nodes"]}
    nodes = (network.by_name[name] for name in part.blocks)
    macs = sum(graphs.node_macs(network, node) for node in nodes if node.source not in left)
    return _Told(NPU, path, macs, *_bytes(network, found.graph.inputs, found.graph.outputs))


def _told_region(network: ImportedModel, part: partition.Part, step: ProgramPart) -> _Told:
    return _Told(HOST, step.path, part_macs(network, part), *_bytes(network, step.inputs, step.outputs))


def _bytes(network: ImportedModel, *ports: Sequence[str]) -> Iterator[int]:
    return (sum(graphs.size_bytes(network, name) for name in names) for names in ports)


def _port(network: ImportedModel, name: str) -> dict[str, Any]:
    """An input or output in the manifest; extents that are known only at run time are -1."""
    known = network.types.get(name)
    if known is not None:
        return {"name": name, "shape": list(known.shape), "dtype": known.dtype}
    proto = network.protos.get(name)
    if proto is None or proto.WhichOneof("value") != "tensor_type":
        said = "" if proto is None else _type_text(proto)
        return {"name": name, "shape": [], "dtype": OBJECT, "type": said}
    dims = proto.tensor_type.shape.dim
    shape = [each.dim_value if each.WhichOneof("value") == "dim_value" else -1 for each in dims]
    return {"name": name, "shape": shape, "dtype": _dtype(proto.tensor_type.elem_type)}


def _type_text(proto: onnx.TypeProto) -> str:
    """A type in ONNX's notation."""
    from onnx import TensorProto

    def name(code: int) -> str:
        return TensorProto.DataType.Name(code).lower()

    match proto.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_type_text(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_type_text(proto.optional_type.elem_type)})"
        case "map_type":
            return f"map({name(proto.map_type.key_type)}, {_type_text(proto.map_type.value_type)})"
        case "tensor_type":
            return f"tensor({name(proto.tensor_type.elem_type)})"
        case kind:
            return kind or ""


def _dtype(code: int) -> str:
    """An element type in the manifest's notation."""
    from onnx import TensorProto, helper

    if code == TensorProto.STRING:
        return STRING
    found = str(helper.tensor_dtype_to_np_dtype(code)) if code else OBJECT
    return found if found in DTYPES else OBJECT


def _graph(programs: Sequence[Program]) -> dict[str, Any]:
    """graph.json of the whole program: layers, tensors and rewrites of all parts."""
    whole: dict[str, Any] = {"tensors": {}, "layers": [], "rewrites": []}
    for number, program in enumerate(programs):
        found = json.loads(program.evidence["graph.json"])
        whole["tensors"] |= {part_tensor(number, name): each for name, each in found["tensors"].items()}
        whole["layers"] += [_layer(number, each) for each in found["layers"]]
        whole["rewrites"] += found.get("rewrites", [])
    return whole


def _layer(number: int, layer: Mapping[str, Any]) -> dict[str, Any]:
    inputs = [part_tensor(number, name) for name in layer["inputs"]]
    return {**layer, "inputs": inputs, "tensor": part_tensor(number, layer["tensor"])}


Report = Mapping[str, Any]
NOT_ADDED = ("target", "machine", "clock_mhz", "macs_per_cycle", "bytes_per_cycle", "capacity_bytes", "level")
"""Fields that describe the machine, not a program on it."""
PEAKS = ("peak_bytes", "lower_bound_bytes")


@frozen
class _Told:
    """A part or a region in a report."""

    place: str
    path: str | None
    macs: int
    bytes_in: int
    bytes_out: int


def merge_reports(found: Sequence[Report], target: str, machine: str, memories: Sequence[str]) -> dict[str, Any]:
    """The combined report of programs run one after the other: sums of counts, largest peaks of memories."""
    empty: dict[str, Any] = {
        "target": target,
        "machine": machine,
        "instructions": 0,
        "segments": 0,
        "macs": 0,
        "cycles": 0,
        "ideal_cycles": 0,
        "utilization": None,
        "memory": {name: {"peak_bytes": 0, "capacity_bytes": None, "lower_bound_bytes": 0} for name in memories},
        "host_steps": [],
        "layers": [],
    }
    if not found:
        return empty
    whole: dict[str, Any] = {**empty, **_add_up(found)}
    whole["utilization"] = whole["ideal_cycles"] / whole["cycles"] if whole["cycles"] else None
    traffic = whole.get("host_traffic", {})
    if len(found) > 1 and "first_inference_cycles" in traffic:  # each loads what another has overwritten
        traffic["cycles_with_transfers"] = traffic["first_inference_cycles"]
    if "frames_per_second" in whole:
        clock = whole.get("clock_mhz")
        whole["frames_per_second"] = clock * 1e6 / whole["cycles"] if clock and whole["cycles"] else None
    return whole


def _add_up(found: Sequence[Report]) -> dict[str, Any]:
    keys = dict.fromkeys(key for each in found for key in each)
    return {key: _add_values(key, [each[key] for each in found if key in each]) for key in keys}


def _add_values(key: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known or key in NOT_ADDED or any(isinstance(value, str | bool) for value in known):
        return known[0] if known else None
    if key in PEAKS:
        return max(known)
    if all(isinstance(value, Mapping) for value in known):
        return _add_up(known)
    if all(isinstance(value, list) for value in known):
        return [each for value in known for each in value]
    return sum(known) if len(known) == len(values) else None


def _proven(found: Sequence[Report]) -> dict[str, Any]:
    """The combined self-check of the program: what holds for every part, unchecked ones included."""
    proofs = [each.get("proof", {"samples": 0, "bit_exact": None, "model": None}) for each in found]
    values = {key: [each[key] for each in proofs] for key in ("bit_exact", "model")}
    samples = min((each["samples"] for each in proofs), default=0)
    whole = {key: all(each) if each and None not in each else None for key, each in values.items()}
    return {"samples": samples, **whole}


def shares(told: Sequence[_Told], npu: int, host: int, executed: int) -> dict[str, Any]:
    """The report's fields on placement.

    npu, host: MACs of the model's nodes. executed: multiplications of the programs, rewrites included.
    """
    return {
        "partitions": [asdict(each) for each in told],
        "macs": npu + host,
        "npu_macs_share": npu / (npu + host) if npu + host else None,
        "executed_macs": executed + host,
    }


def utilisation(report: Report, own: int) -> dict[str, Any]:
    """Utilisation of the machine by the network's own MACs: those that rewrites add do not count."""
    executed = report["macs"]
    ideal = report["ideal_cycles"] * (min(own, executed) / executed if executed else 1)
    return {"ideal_cycles": ideal, "utilization": ideal / report["cycles"] if report["cycles"] else None}
