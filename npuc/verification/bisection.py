"""Where a program first goes wrong: layer, element, tile and instruction, with a small model that shows it.

For integer programs "wrong" is a difference between the simulator and the integer network. For floating-point
programs it is a difference between this program and the freshly compiled model on the simulator, or one from
onnxruntime that rounding does not explain. If there is none, the layer that adds the most noise against fp32 is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from npuc.evidence import read_graph
from npuc.frontend.frames import add_frames
from npuc.frontend.reading import read_model
from npuc.frozen import frozen
from npuc.images.description import Description
from npuc.ir import Array
from npuc.program import Program, save_files
from npuc.reference import values_of, with_outputs
from npuc.regions.compilation import recompile
from npuc.regions.witnesses import standing
from npuc.running import batch_of
from npuc.samples import loading as data
from npuc.target import FLOATING, Origin, Runner, Target
from npuc.text.escaping import shell_word
from npuc.verification.isolation import Isolated

Report = Mapping[str, Any]
Find = Callable[[str, tuple[int, ...]], Origin | None]
"""Gives the instruction that computed an element of a tensor."""


@frozen
class FirstDifference:
    """The first element, in the order of layers and samples, that the machine computes wrongly."""

    layer: str
    op: str
    nodes: tuple[str, ...]
    tensor: str
    sample: int
    element: tuple[int, ...]
    expected: int | float
    found: int | float
    differing: int
    """Elements of this tensor that differ in this sample."""
    origin: Origin | None
    """The instruction that computed the element, if one did."""

    @classmethod
    def of(
        cls, layer: Report, sample: int, expected: Array, found: Array, wrong: Array, origin: Find
    ) -> FirstDifference:
        """The first wrong element of a layer's result in a sample. wrong: which elements are."""
        element = tuple(int(index) for index in np.argwhere(wrong)[0])
        return cls(
            layer["name"], layer["op"], tuple(layer["nodes"]), layer["tensor"], sample, element,
            expected[element].item(), found[element].item(), int(wrong.sum()), origin(layer["tensor"], element),
        )  # fmt: skip


class _Judged(NamedTuple):
    """A layer of one sample: its correct values, and which of the values found are wrong."""

    tensor: str
    sample: int
    right: Array
    wrong: Array


Shown = Mapping[str, Array]
"""The tensors that the simulator shows, (samples, *shape) each."""
_Judge = Callable[[data.Samples, Shown], Iterator[_Judged]]


def _by_reference(reference: bytes) -> _Judge:
    """Judges against the integer network, bit for bit."""
    run = standing(reference)

    def judge(batch: data.Samples, shown: Shown) -> Iterator[_Judged]:
        names = [each.name for each in run.get_outputs() if each.name in shown]
        for sample, feed in enumerate(batch.feeds()):
            for name, right in values_of(run, names, feed).items():
                yield _Judged(name, sample, right, right != shown[name][sample])

    return judge


def _by_compiling(fresh: Program, target: Target) -> _Judge:
    """Judges against a freshly compiled program on the same simulator, bit for bit."""
    run = target.runner(fresh)

    def judge(batch: data.Samples, shown: Shown) -> Iterator[_Judged]:
        for name, values in _simulate(run, batch, outputs=True).items():
            for sample, (right, found) in enumerate(zip(values, shown[name], strict=True)):
                yield _Judged(name, sample, right, ~((right == found) | (np.isnan(right) & np.isnan(found))))

    return judge


def _by_layer(reference: bytes, graph: Report, precision: str) -> _Judge:
    """Judges each layer alone against the float network: errors beyond rounding are wrong."""
    shapes = {name: each["shape"] for name, each in graph["tensors"].items()}
    prepared: list[Isolated] = []

    def judge(batch: data.Samples, shown: Shown) -> Iterator[_Judged]:
        if not prepared:
            prepared.append(Isolated(reference, shapes, shown.keys() & shapes.keys(), precision))
        for sample, feed in enumerate(batch.feeds()):
            found = {name: values[sample, ...] for name, values in shown.items()}
            for name, alone in prepared[0]({**feed, **found}):
                yield _Judged(name, sample, alone.exact, alone.wrong(found[name]))

    return judge


def _simulate(run: Runner, batch: data.Samples, *, outputs: bool) -> dict[str, Array]:
    """The tensors that the simulator shows for a batch; floating-point programs count outputs as layers too."""
    shown: dict[str, Array] = {}
    given = run(batch.inputs, shown.__setitem__)
    return shown | given if outputs else shown


def first_difference(
    model: Path, program: Program, target: Target, samples: data.Samples
) -> FirstDifference | None:
    """The first difference between the simulator and the expected values of its layers, or None.

    program: with its evidence. The search goes by layers first, then by samples, so that errors
    propagated to later layers do not hide their origin. A floating-point program can match bit for bit only with
    the freshly compiled model; an error that both share shows as a difference from onnxruntime beyond rounding.
    """
    graph, reference = read_graph(program), program.evidence["reference.onnx"]
    if program.precision not in FLOATING:
        return _first(program, target, graph, samples, _by_reference(reference))
    fresh = recompile(model, program, target)
    found = None if fresh is None else _first(program, target, graph, samples, _by_compiling(fresh, target))
    return found or _first(program, target, graph, samples, _by_layer(reference, graph, program.precision))


def _first(
    program: Program, target: Target, graph: Report, samples: data.Samples, judge: _Judge
) -> FirstDifference | None:
    """The first layer that the judge finds wrong, in its first sample."""
    run = target.runner(program)
    orders = {layer["tensor"]: order for order, layer in reversed(list(enumerate(graph["layers"])))}
    best: tuple[int, int] = (len(orders), 0)
    found: tuple[_Judged, Shown] | None = None
    size = batch_of(program)
    for number, batch in enumerate(samples.batches(size)):
        shown = _simulate(run, batch, outputs=program.precision in FLOATING)
        for each in judge(batch, shown):
            place = orders.get(each.tensor, len(orders)), size * number + each.sample
            if place < best and each.wrong.any():
                best, found = place, (each, shown)
    return None if found is None else _difference(program, target, graph, best, *found)


def _difference(
    program: Program, target: Target, graph: Report, place: tuple[int, int], judged: _Judged, shown: Shown
) -> FirstDifference:
    layer, found = graph["layers"][place[0]], shown[judged.tensor][judged.sample]
    layer = {**layer, "nodes": _nodes(graph, layer, shown)}
    return FirstDifference.of(layer, place[1], judged.right, found, judged.wrong, partial(target.origin, program))


def _nodes(graph: Report, layer: Report, shown: Collection[str]) -> tuple[str, ...]:
    """The ONNX nodes of a layer and of preceding layers that are not shown: the fault may lie in any of them."""
    hidden, _ = _behind(graph, layer, shown)
    return tuple(dict.fromkeys(name for each in (layer, *hidden) for name in each["nodes"]))


def _behind(graph: Report, layer: Report, shown: Collection[str]) -> tuple[list[Report], list[str]]:
    """The layers before a layer, back to those that are shown, and the tensors that these have computed."""
    producers = {each["tensor"]: each for each in graph["layers"]}
    hidden, borders, waiting = list[Report](), list[str](), list[str](layer["inputs"])
    while waiting:
        name = waiting.pop()
        if name in shown:
            borders.append(name)
        elif name in producers:
            hidden.append(producers[name])
            waiting += producers[name]["inputs"]
    return hidden, borders


def largest_loss(report: Report, graph: Report) -> dict[str, Any] | None:
    """The layer that adds the most noise, relative to its signal, or the first with wrong bits; None without any.

    Two views must agree on it, so the smaller noise counts: the layer alone, and its result within the network
    less the worst of its inputs. Alone, a reader of a wrong scale looks as bad as its writer; within the
    network, noise grows in layers that are not at fault. Those of floating point have the second view only: alone
    they are compared with the program's own network. report: that of `npuc verify`.
    """
    rows = dict(zip((each["tensor"] for each in graph["layers"]), report["layers"], strict=True))
    entire = {name: _noise(each["entire"]) for name, each in rows.items() if each["entire"] is not None}
    found: list[tuple[float, Report, list[str]]] = []
    differing = [each for each in graph["layers"] if rows[each["tensor"]]["bit_exact"] is False][:1]
    for layer in differing or graph["layers"]:
        name = layer["tensor"]
        if name in entire:
            _, before = _behind(graph, layer, entire)
            added = entire[name] - max((entire[each] for each in before), default=0.0)
            alone = None if report["bit_exact"] is None else rows[name]["single"]
            found.append((added if alone is None else min(added, _noise(alone)), layer, before))
    if not found:
        return None
    _, layer, before = max(found, key=lambda each: each[0])
    row = rows[layer["tensor"]]
    return {
        "layer": layer["name"],
        "op": layer["op"],
        "nodes": list(_nodes(graph, layer, entire)),
        "tensor": layer["tensor"],
        "single_db": None if row["single"] is None else row["single"]["sqnr_db"],
        "entire_db": row["entire"]["sqnr_db"],
        "inputs_db": min(
            (db for each in before if (db := rows[each]["entire"]["sqnr_db"]) is not None), default=None
        ),
    }


def _noise(figures: Report) -> float:
    """The noise of a comparison, as a part of its signal."""
    return 0.0 if figures["sqnr_db"] is None else 10 ** (-figures["sqnr_db"] / 10)


def reproduction(
    model: Path, graph: Report, tensor: str, feed: Mapping[str, Array], images: Sequence[Description] = ()
) -> dict[str, bytes]:
    """A minimal ONNX model of the layer that computes an integer tensor, its input, and the sample.

    feed: the sample, in the program's shapes; images: which are frames. The model is the part of the ONNX model
    between the float tensors that the layer reads and the one that it computes; the whole model if the passes have
    left no such part.
    """
    fp32 = add_frames(read_model(model), images)
    part = _part(fp32, graph, tensor)
    inputs = _inputs(fp32, [port.name for port in part.graph.input], feed)
    with TemporaryDirectory() as folder:
        data.save(Path(folder) / "input.npz", {name: values[None] for name, values in inputs.items()})
        data.save(Path(folder) / "sample.npz", {name: values[None] for name, values in feed.items()})
        files = {name: (Path(folder) / name).read_bytes() for name in ("input.npz", "sample.npz")}
    return {"layer.onnx": part.SerializeToString(deterministic=True), **files}


def commands(target: Target, model: Path, directory: Path) -> str:
    """The commands that reproduce the difference: in the whole program, and in a program of the layer alone."""
    return (
        "#!/bin/sh\n"
        f"npuc verify {shell_word(str(model.resolve()))} {shell_word(str(directory.resolve()))} "
        "--data sample.npz --allow-modified\n"
        f"npuc compile layer.onnx --target {target.name} --calibration input.npz -o layer.npu\n"
        "npuc verify layer.onnx layer.npu --data input.npz\n"
    )


def save(files: Mapping[str, bytes], text: str, folder: Path) -> list[str]:
    """Writes the reproduction; returns the file names. Raises ArtefactError (E505) if the folder is not empty."""
    contents = {**files, "reproduce.sh": text.encode()}
    save_files(contents, folder)
    return sorted(contents)


def _part(model: Any, graph: Report, tensor: str) -> Any:
    from onnx import checker
    from onnx.utils import Extractor

    floats = {name: each["float"] for name, each in graph["tensors"].items()}
    layer = next(each for each in graph["layers"] if each["tensor"] == tensor)
    known = {port.name for port in model.graph.input} | {name for node in model.graph.node for name in node.output}
    read = list(dict.fromkeys(floats[name] for name in layer["inputs"] if name in floats))
    if not read or not {*read, floats[tensor]} <= known or floats[tensor] in read:
        return model
    try:
        from onnx.shape_inference import infer_shapes

        part = Extractor(infer_shapes(model)).extract_model(read, [floats[tensor]])
        checker.check_model(part)
    except Exception:  # if onnx cannot extract the part, use the whole model
        return model
    return part


def _inputs(model: Any, names: Sequence[str], feed: Mapping[str, Array]) -> dict[str, Array]:
    """The values of these tensors of the fp32 model for a sample."""
    missing = [name for name in names if name not in feed]
    found = {name: feed[name] for name in names if name in feed}
    if missing:
        values = standing(with_outputs(model, missing)).run(missing, feed)
        found.update(zip(missing, values, strict=True))
    return found
