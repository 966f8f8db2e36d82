"""The boxes of the network drawing: one for every NPU layer, and one for each host step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from npuc.ops import OPS
from npuc.page.network import Box
from npuc.program import Program
from npuc.text.terminal import count

Report = Mapping[str, Any]
SHADES = {"cycles": "cycles", "bytes": "bytes", "error": "SQNR", "place": "place"}
"""Quantities by which boxes may be coloured, with their labels on the page."""
HOT = {"place": 1.0}
"""The shade of a box on the host."""


def boxes_of(program: Program, steps: Iterable[Report], graph: Report, layers: Sequence[Report]) -> list[Box]:
    """The boxes, each after all that it reads. steps: of the run; graph: graph.json; layers: of the report."""
    parts = program.manifest["report"].get("partitions", ())
    regions = {node: _region(part) for part in parts for node in part["nodes"]}
    tensors, numbers, shades = graph.get("tensors", {}), by_node(layers), _shades(layers)
    waiting = [step for step in steps if _is_host(step)]
    made: dict[str, str] = {each["name"]: "" for each in program.manifest["inputs"]}
    # by tensor of the model or of the integer network: the box that computes it, none for inputs
    found: list[Box] = []

    def add(box: Box, outputs: Sequence[str]) -> None:
        found.append(box)
        made.update(dict.fromkeys((box.tensor, *outputs), box.tensor))

    def host_steps() -> None:
        for step in [each for each in waiting if all(name in made for name in each["inputs"])]:
            waiting.remove(step)
            add(_host_box(step, [made[name] for name in step["inputs"]], parts), step["outputs"])

    for each in graph.get("layers", ()):
        host_steps()
        number = next((numbers[node] for node in each["nodes"] if node in numbers), None)
        layer, tensor = None if number is None else layers[number], tensors.get(each["tensor"], {})
        title = _title(each["op"], layer["op"] if layer else "")
        reads = (made.get(name, made.get(tensors.get(name, {}).get("float", name), "")) for name in each["inputs"])
        shade = {} if number is None else {key: values[number] for key, values in shades.items()}
        region = next((regions[node] for node in each["nodes"] if node in regions), "")
        hint = "\n".join(_hints(each, layer, tensor))
        add(
            Box(each["tensor"], title, hint, tuple(reads), shade, number, region),
            [tensor.get("float", each["tensor"])],
        )
    host_steps()
    return found


def by_node(layers: Sequence[Report]) -> dict[str, int]:
    """The index of the layer that contains each node of the model."""
    return {node: number for number, layer in enumerate(layers) for node in layer["nodes"]}


def _title(op: str, instruction: str) -> str:
    """The operator, and the instruction if its name differs; the instruction alone of a machine's own operator."""
    if instruction and op not in OPS:
        return instruction
    bare = op.removeprefix("Int")
    return bare if instruction.lower() in ("", bare.lower(), op.lower()) else f"{bare} {instruction}"


def _is_host(step: Report) -> bool:
    """Whether a step is part of the model on the host: more than a data conversion for the machine."""
    return step.get("kind", "host") == "host" and not step.get("conversion", False)


def _host_box(step: Report, reads: Sequence[str], parts: Sequence[Report]) -> Box:
    """The box of a host step: a node, or a region with a path."""
    part = next((each for each in parts if each["path"] and each["path"] == step.get("path")), None)
    if part is None:
        region = _region({"path": None, "place": "host"})
        return Box(
            step["outputs"][0], step["op"], f"{step['node']}\n{step['reason']}", tuple(reads), HOT, None, region
        )
    title = ", ".join(dict.fromkeys(why["op"] for why in part["reasons"])) or f"{len(part['nodes'])} nodes"
    hint = "\n".join([", ".join(part["nodes"]), *reasons(part)])
    return Box(step["outputs"][0], title, hint, tuple(reads), HOT, None, _region(part))


def reasons(part: Report) -> list[str]:
    """Why the operators of a part run on the host, a text for each reason."""
    ops: dict[str, dict[str, None]] = {}
    for why in part["reasons"]:
        ops.setdefault(why["reason"], {})[why["op"]] = None
    return [f"{', '.join(names)}: {reason}" for reason, names in ops.items()]


def _region(part: Report) -> str:
    """A part's name."""
    place = {"npu": "on the NPU", "host": "on the host"}[part["place"]]
    return f"{part['path']} {place}" if part["path"] else place


def _shades(layers: Sequence[Report]) -> dict[str, list[float]]:
    """The shades of layers, for each known quantity: 0 (nothing) to 1 (the largest of all)."""
    found: dict[str, list[float]] = {}
    for key in ("cycles", "bytes"):
        values = [layer.get(key) or 0 for layer in layers]
        if any(values):
            found[key] = [value / max(values) for value in values]
    decibels = [layer["sqnr_db"] for layer in layers]
    known = [each for each in decibels if each is not None]
    if known:
        noisiest = min(known)
        found["error"] = [0.0 if each is None else max(1 - (each - noisiest) / 40, 0.0) for each in decibels]
    return found


def _hints(each: Report, layer: Report | None, tensor: Report) -> Iterator[str]:
    """The tooltip of a box: names, shape, scale, costs and certificates."""
    yield from (each["tensor"], ", ".join(each["nodes"]))
    if "shape" in tensor:
        yield "shape " + " x ".join(map(str, tensor["shape"]))
    if tensor.get("scale") is not None:
        yield f"scale {tensor['scale']:.6g}, zero point {tensor.get('zero_point', 0)}"
    if layer is None:
        yield "not an instruction of its own"
        return
    yield f"{count(layer['cycles'])} cycles" + (f", {count(layer['bytes'])} bytes" if layer.get("bytes") else "")
    if layer.get("tile"):
        yield "tile " + " x ".join(map(str, layer["tile"]))
    if layer.get("accumulator_bound") is not None:
        yield f"accumulators stay within {count(layer['accumulator_bound'])}"
    if layer["sqnr_db"] is not None:
        yield f"{layer['sqnr_db']:.1f} dB"
