"""Assembly of a program from its parts, with its report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuc.errors import HOST_STEP, NpucError, Problem
from npuc.frontend.model import ImportedModel, ImportedNode
from npuc.frozen import frozen
from npuc.ir import Graph
from npuc.program import DTYPES, OBJECT, STRING, Program, canonical_json
from npuc.regions import graphs, partition
from npuc.regions.artefact import HOST, NPU, Contents, ProgramPart, embedded, part_path, region_path
from npuc.regions.planning import Key, Plan, absorbed, key_of, part_macs, read_outside
from npuc.regions.reporting import OnHost, Told, merged, proven, reasons, shares, utilised
from npuc.regions.running import within
from npuc.samples.loading import Samples
from npuc.storage.pieces import Content, Files
from npuc.target import Options

if TYPE_CHECKING:
    import onnx


@frozen
class Lowered:
    """An NPU part: its float graph after the passes, the samples that calibrated it, and its program."""

    graph: Graph
    samples: Samples
    program: Program


def entire(plan: Plan, parts: Sequence[partition.Part], lowered: Mapping[Key, Lowered]) -> Program | None:
    """The program of the only part, if that is the whole network; None if the host has a part too."""
    if not parts or not parts[0].on_npu:
        return None
    network = plan.network
    found = lowered[key_of(network, read_outside(network, parts), parts[0])]
    if not is_whole(plan, parts, found.graph):
        return None
    return _reported(found.program, _told_part(network, parts[0], None, found), plan.options)


def is_whole(plan: Plan, parts: Sequence[partition.Part], graph: Graph) -> bool:
    """Whether these parts, of which the first has this graph, are the whole model on the NPU."""
    network = plan.network
    return (
        len(parts) == 1
        and len(parts[0].blocks) == len(network.nodes)
        and graph.inputs == network.inputs
        and graph.outputs == network.outputs
    )


def _reported(program: Program, told: Sequence[Told], options: Options) -> Program:
    """The program with its report on what runs where, and with its bound inputs."""
    report = program.manifest["report"]
    told_of = {**shares(told, report["macs"]), **utilised(report, told)}
    return replace(program, manifest={**program.manifest, **_bound(options), "report": {**report, **told_of}})


def _bound(options: Options) -> dict[str, dict[str, float]]:
    """The manifest's entry of the inputs that are bound to constants; empty without any."""
    return {"bound": dict(options.bind)} if options.bind else {}


def assembled(plan: Plan, parts: Sequence[partition.Part], lowered: Mapping[Key, Lowered]) -> Program:
    """The program of all parts. Raises UnsupportedOperator (E201) for a region that onnxruntime cannot load."""
    network, files, evidence = plan.network, dict[str, Content](), dict[str, Content]()
    steps: list[ProgramPart] = []
    told: list[Told] = []
    programs: list[Program] = []
    numbers, executed, outside = {True: 0, False: 0}, 0, read_outside(network, parts)
    for part in parts:
        number = numbers[part.on_npu]
        numbers[part.on_npu] += 1
        if part.on_npu:
            found = lowered[key_of(network, outside, part)]
            step = ProgramPart(NPU, part_path(number), tuple(found.graph.inputs), tuple(found.graph.outputs))
            part_told = _told_part(network, part, step.path, found)
            programs.append(_reported(found.program, part_told, plan.options))
            executed += found.program.manifest["report"]["macs"]
            data, proof = embedded(step.path, programs[-1])
            files |= data.contents
            evidence |= proof.contents
            told += part_told
        else:
            units = [network.by_name[name] for name in part.blocks]
            step = _region_step(network, units, region_path(number), outside)
            files[step.path] = region_bytes(network, units, step)
            told.append(_told_region(plan, part, step))
        steps.append(step)
    reports = [each.manifest["report"] for each in programs]
    report = merged(reports, plan.target.name, _machine(plan), plan.target.memories)
    manifest = {
        "target": plan.target.name,
        "precision": plan.options.precision,
        "machine": plan.target.machine_values(plan.options.machine),
        **Contents(tuple(steps), {name: name for name in network.outputs}).as_json(),
        "inputs": [_port(network, name) for name in network.inputs],
        "outputs": [_port(network, name) for name in network.outputs],
        "report": {**report, **shares(told, executed), "proof": proven(reports)},
        **_bound(plan.options),
    }
    whole = {"graph.json": canonical_json(_graph(programs))}
    return Program(manifest, Files(files), Files({**evidence, **whole}))


def _machine(plan: Plan) -> str:
    return str(plan.target.machine_values(plan.options.machine).get("name", plan.options.machine or "default"))


def _region_step(
    network: ImportedModel, units: Sequence[ImportedNode], path: str, wanted: set[str]
) -> ProgramPart:
    written = [name for unit in units for name in unit.writes]
    inputs = graphs.crossing_inputs(network, units, on_npu=False)
    outputs = tuple(name for name in dict.fromkeys(written) if name in wanted)
    return ProgramPart(HOST, path, tuple(inputs), outputs, tuple(sorted({*graphs.custom_operators(units)})))


def region_bytes(network: ImportedModel, units: Sequence[ImportedNode], step: ProgramPart) -> bytes:
    """The region's model, which onnxruntime loads. Raises UnsupportedOperator (E201) for what it refuses."""
    from npuc.reference import session

    data = graphs.region_model(network, units, step.outputs).SerializeToString(deterministic=True)
    try:
        session(data, confined=True)
    except NpucError as error:
        problems = [unit.problem for unit in units if unit.problem is not None and unit.problem.code[1] in "12"]
        if not problems:
            raise
        said = error.problems[0].reason
        raise NpucError.of([replace(each, reason=f"{each.reason}; {said}") for each in problems]) from None
    return data


def _told_part(network: ImportedModel, part: partition.Part, path: str | None, found: Lowered) -> list[Told]:
    counted = {name: graphs.node_macs(network, network.by_name[name]) for name in part.blocks}
    ports = found.graph.inputs, found.graph.outputs
    taken, given = (sum(graphs.size_bytes(network, name) for name in names) for names in ports)
    return _told(found.program.manifest["report"], counted, path, taken, given)


def _told_region(plan: Plan, part: partition.Part, step: ProgramPart) -> Told:
    network = plan.network
    border = {*step.inputs, *step.outputs}
    nodes: list[OnHost] = []
    for name in part.blocks:
        unit = network.by_name[name]
        problem = plan.denied.get(name) or absorbed(unit)
        crossed = sum(
            graphs.size_bytes(network, each) for each in border.intersection((*unit.reads, *unit.writes))
        )
        nodes.append(OnHost(problem, graphs.node_macs(network, unit), crossed))
    ports = step.inputs, step.outputs
    taken, given = (sum(graphs.size_bytes(network, name) for name in names) for names in ports)
    return Told(HOST, step.path, part.blocks, part_macs(network, part), taken, given, reasons(nodes))


def _port(network: ImportedModel, name: str) -> dict[str, Any]:
    """An input or output in the manifest; extents that are known only at run time are -1."""
    known = network.types.get(name)
    if known is not None:
        return {"name": name, "shape": list(known.shape), "dtype": known.dtype}
    proto = network.protos.get(name)
    if proto is None or proto.WhichOneof("value") != "tensor_type":
        said = "" if proto is None else _written(proto)
        return {"name": name, "shape": [], "dtype": OBJECT, "type": said}
    dims = proto.tensor_type.shape.dim
    shape = [each.dim_value if each.WhichOneof("value") == "dim_value" else -1 for each in dims]
    return {"name": name, "shape": shape, "dtype": _dtype(proto.tensor_type.elem_type)}


def _written(proto: onnx.TypeProto) -> str:
    """A type in ONNX's notation."""
    from onnx import TensorProto

    def name(code: int) -> str:
        return TensorProto.DataType.Name(code).lower()

    match proto.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_written(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_written(proto.optional_type.elem_type)})"
        case "map_type":
            return f"map({name(proto.map_type.key_type)}, {_written(proto.map_type.value_type)})"
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
        whole["tensors"] |= {within(number, name): each for name, each in found["tensors"].items()}
        whole["layers"] += [_layer(number, each) for each in found["layers"]]
        whole["rewrites"] += found.get("rewrites", [])
    return whole


def _layer(number: int, layer: Mapping[str, Any]) -> dict[str, Any]:
    inputs = [within(number, name) for name in layer["inputs"]]
    return {**layer, "inputs": inputs, "tensor": within(number, layer["tensor"])}


def _told(
    report: Mapping[str, Any], macs: Mapping[str, int], path: str | None, bytes_in: int, bytes_out: int
) -> list[Told]:
    """Report entries for an NPU part and, if it has any, its host steps. macs: of its nodes, by name."""
    steps = {step["node"]: step for step in report["host_steps"]}
    here = [name for name in macs if name not in steps]
    found = [Told(NPU, path, tuple(here), sum(macs[name] for name in here), bytes_in, bytes_out)]
    if steps:
        on_host = [
            OnHost(Problem(HOST_STEP, step["reason"], name, step["op"]), macs.get(name, 0), 0)
            for name, step in steps.items()
        ]
        found.append(Told(HOST, path, tuple(steps), sum(each.macs for each in on_host), 0, 0, reasons(on_host)))
    return found
