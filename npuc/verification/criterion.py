"""The accuracy that a program's outputs must reach, relative to the best its number format allows for the network.

The float network runs once more with every result rounded as well as the format allows: fp16 to the nearest
number; integers to 8 or 16 bits over exactly the range of the samples, with per-channel weight scales. An output
may be worse than that by MARGIN, must reach LEAST, and need not be better than ENOUGH. A few samples of a small
output show less or more noise by chance, so copies of them with other roundings are included.

A quantised model rounds to integers in fp32 too: near a tie, another order of additions gives the next integer. An
fp32 program of it is therefore judged by the integer format. Its integer network was built with the model's own
scales and zero points, so a simulation that agrees with it bit for bit does not show what the network itself got
wrong: Nearness compares it with the model. An output with less than about one bit of the model's is judged against
ideal rounding of every result: noise that rounding explains is no defect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np

from npuc.frontend import import_model
from npuc.frontend.binding import with_bound
from npuc.frontend.forms import forms
from npuc.frontend.frames import add_frames
from npuc.frontend.model import ImportedModel, ImportedNode
from npuc.frontend.reading import parse_model, read_model
from npuc.ir import Array, Graph, Node
from npuc.onnx_files.wire import may_contain
from npuc.ops.attributes import DTYPE, SCALE
from npuc.ops.movement import ONNX_MOVEMENT
from npuc.ops.products import PRODUCTS
from npuc.passes import FLOAT_PASSES
from npuc.pipeline import run_passes
from npuc.program import Program
from npuc.reference import graph_session, values_of
from npuc.regions.artefact import NPU, Contents, is_composite
from npuc.regions.graphs import part_graph
from npuc.regions.rebatching import rebatch
from npuc.regions.running import CompositeRunner, sample_by_sample
from npuc.samples.loading import Samples
from npuc.samples.streams import Streamed
from npuc.samples.structured import row
from npuc.system.budget import budget
from npuc.target import FLOATING, Runner
from npuc.verification.bits import OF_ONE
from npuc.verification.equivalence import Original
from npuc.verification.exact import read_network
from npuc.verification.metrics import Difference, Tolerance
from npuc.verification.original import FACTOR

MARGIN = {"int8": 12.0, "int16": 20.0, "fp16": 6.0}
"""In dB. For integers it covers scales chosen on other samples, power-of-two factors, and missing zero points."""
ENOUGH = {"int8": 15.0, "int16": 30.0, "fp16": 60.0}
LEAST = {"int8": 3.0, "int16": 10.0, "fp16": 10.0}
"""Below this a format does not suit the network: outputs are hardly more than noise."""
LEVELS = {"int8": 255, "int16": 65535}
BOUNDED = ("Sigmoid", "Tanh", "Erf", "Softmax")
MOVES = (*ONNX_MOVEMENT, "Squeeze", "Unsqueeze", "Flatten")
DRAWS = 16
"""The least number of samples whose noise tells that of a format."""
BATCH = 8
"""Samples that the parts of a program compute one after the other."""
Range = tuple[float, float]


def criterion(model: Path, program: Program, samples: Samples) -> Tolerance:
    """The tolerance of a program on samples; the default one where the format implies none for the network.

    No output of a model in half precision, or with dynamic scales, need be better than the model's own noise.
    """
    found = _of_program(model, program, samples)
    own = {name: min(db, found.of_output(name)[0]) for name, db in own_noise(model, program, samples).items()}
    return replace(found, limits={**found.limits, **own})


def own_noise(model: Path, program: Program, samples: Samples) -> dict[str, float]:
    """Signal to noise in dB that the model's own formats leave of its outputs, if npuc reads it in another."""
    if not any(rewrite.deliberate for rewrite, _ in forms(parse_model(model, whole=False), model.parent)):
        return {}
    original, feed = Original(model, program.bound, program.images), next(iter(samples.feeds()))
    wanted = {name: each for name, each in original.run(feed).items() if each.dtype.kind == "f"}
    noises = original.form.noise(feed, [*wanted])
    size = {name: float(np.sqrt(np.square(each.astype(np.float64)).sum())) for name, each in wanted.items()}
    return {
        name: 20 * float(np.log10(max(size[name], 1e-300) / (FACTOR * noise)))
        for name, (noise, _) in noises.items()
        if 0 < noise < np.inf
    }


def _of_program(model: Path, program: Program, samples: Samples) -> Tolerance:
    """The tolerance that the program's own format implies."""
    usual = Tolerance.of(program.precision, synthetic=samples.synthetic)
    if program.precision in FLOATING:
        usual = replace(usual, exact=dict.fromkeys(of_bounded(model), OF_ONE))
    composite = is_composite(program)
    on_host = dict.fromkeys(of_host(program), Tolerance.of("fp32").sqnr_db) if composite else {}
    own = own_format(model, program) if program.precision == "fp32" and not composite else None
    judged = program.precision == "fp16" if composite else program.precision in MARGIN and usual.judges
    if not judged and own is None:
        return replace(usual, limits=on_host)
    precision = own or program.precision
    samples = redrawn(samples) if precision == "fp16" else samples
    best = (
        ideal_in_parts(model, program, samples) if composite else ideal(_float(model, program), precision, samples)
    )
    margin, enough, least = (each[precision] for each in (MARGIN, ENOUGH, LEAST))
    enough = enough if own is None else usual.sqnr_db
    limits = {name: max(min(sqnr - margin, enough), least) for name, sqnr in best.items()}
    return replace(usual, limits=limits | on_host)


def own_format(model: Path, program: Program) -> str | None:
    """The coarsest integers to which a model itself rounds results, int8 or int16; None if it does not round."""
    if not may_contain(model, b"QuantizeLinear", b"QLinear"):
        return None
    steps = [DTYPE(node) for node in _float(model, program).nodes if node.op == "FakeQuantize"]
    return None if not steps else "int8" if any(each.endswith("int8") for each in steps) else "int16"


def _float(model: Path, program: Program) -> Graph:
    """The model's graph with the program's inputs: shapes, and bound ones as constants."""
    shapes = {port.name: port.shape for port in program.inputs}
    with budget():
        bound = with_bound(read_model(model, whole=False), program.bound)
        bound = add_frames(rebatch(bound, shapes, program.images, model.parent), program.images)
        return run_passes(import_model(bound, model.parent, shapes), FLOAT_PASSES)


def redrawn(samples: Samples) -> Samples:
    """At least DRAWS samples: float inputs of copies differ by up to half a step of fp16, so all roundings do."""
    if len(samples) >= DRAWS or isinstance(samples.inputs, Streamed):
        return samples
    random, copies = np.random.default_rng(0), -(-DRAWS // len(samples))

    def move(values: Array) -> Array:
        found = np.concatenate([values] * copies)
        if values.dtype == np.float32:
            half = random.uniform(-(2.0**-12), 2.0**-12, found.shape)
            found[len(values) :] *= (1 + half).astype(np.float32)[len(values) :]
        return found

    return Samples({name: move(values) for name, values in samples.inputs.items()})


def of_bounded(model: Path) -> set[str]:
    """The outputs of functions such as Sigmoid, which onnxruntime computes to an absolute accuracy.

    Of scores that are all near 0 it has only a few digits, or none.
    """
    graph = read_model(model, whole=False).graph
    found = set[str]()
    for node in graph.node:
        moved = node.op_type in MOVES and node.input and node.input[0] in found
        if node.op_type in BOUNDED or moved:
            found.update(node.output)
    return found.intersection(each.name for each in graph.output)


def of_host(program: Program) -> list[str]:
    """The outputs of a program of several parts that depend on no NPU part: they must be as in fp32."""
    contents, from_npu = Contents.of(program.manifest), set[str]()
    for step in contents.steps:
        if step.kind == NPU or from_npu.intersection(step.inputs):
            from_npu.update(step.outputs)
    return [port.name for port in program.outputs if contents.results.get(port.name) not in from_npu]


def tolerance(
    model: Path, program: Program, samples: Samples, sqnr_db: float | None, cosine: float | None
) -> Tolerance:
    """The tolerance requested by the user; the program's criterion if none is requested."""
    if sqnr_db is None and cosine is None:
        return criterion(model, program, samples)
    usual = Tolerance.of(program.precision, synthetic=samples.synthetic)
    return Tolerance(usual.sqnr_db if sqnr_db is None else sqnr_db, usual.cosine if cosine is None else cosine)


def ideal(graph: Graph, precision: str, samples: Samples) -> dict[str, float]:
    """Signal to noise in dB of each output under ideal rounding; outputs without noise are left out."""
    floats = [name for node in graph.nodes for name in node.outputs if _is_float(graph, name)]
    names = list(dict.fromkeys([*floats, *graph.outputs]))
    ranges = dict.fromkeys([*names, *graph.inputs], (0.0, 0.0))
    exact, feeds = graph_session(graph, names), list(samples.feeds())
    wanted: list[Mapping[str, Array]] = []
    for feed in feeds:
        values = values_of(exact, names, feed)
        wanted.append({name: values[name] for name in graph.outputs})
        for name, value in {**values, **feed}.items():
            ranges[name] = _widen(ranges[name], value)
    found = graph_session(_round_graph(graph, precision, ranges), graph.outputs)
    differences = {name: Difference() for name in graph.outputs}
    for feed, right in zip(feeds, wanted, strict=True):
        for name, value in values_of(found, graph.outputs, feed).items():
            differences[name].add(right[name], value)
    return {name: each.sqnr_db for name, each in differences.items() if each.sqnr_db is not None}


def ideal_in_parts(model: Path, program: Program, samples: Samples) -> dict[str, float]:
    """The same of a program of several parts in fp16: its NPU parts are rounded, its host regions are not.

    A part is what the model computes between the part's inputs and outputs. Only rounding counts: what a region of
    the program does wrong is no noise of the format.
    """
    network = read_network(model, program)
    exact, best = (
        CompositeRunner(program, lambda part, rounds=rounds: _in_float(network, part, rounds=rounds))
        for rounds in (False, True)
    )
    differences = {port.name: Difference() for port in program.outputs}
    for batch in samples.batches(BATCH):
        wanted, found = exact(batch.inputs), best(batch.inputs)
        for name, each in differences.items():
            for at in range(len(batch)):
                each.compare(row(wanted[name], at), row(found[name], at))
    return {name: each.sqnr_db for name, each in differences.items() if each.sqnr_db is not None}


def _in_float(network: ImportedModel, part: Program, *, rounds: bool) -> Runner:
    """A part as the model computes it; rounds: with every result rounded ideally to fp16."""
    inputs, outputs = ([port.name for port in ports] for ports in (part.inputs, part.outputs))
    graph = run_passes(part_graph(network, between(network, inputs, outputs), outputs, "part"), FLOAT_PASSES)
    if rounds:
        names = {name for node in graph.nodes for name in node.outputs}
        graph = _round_graph(graph, "fp16", dict.fromkeys([*names, *graph.inputs], (0.0, 1.0)))
    return sample_by_sample(graph_session(graph, outputs), outputs)


def between(network: ImportedModel, inputs: Collection[str], outputs: Iterable[str]) -> list[ImportedNode]:
    """The units that compute these outputs from these inputs."""
    wanted, found = set(outputs), list[ImportedNode]()
    for unit in reversed(network.nodes):
        made = {name for node in unit.nodes for name in node.outputs}
        if not wanted.isdisjoint(made):
            wanted.update(name for name in unit.imported if name not in inputs)
            found.append(unit)
    return found[::-1]


def _is_float(graph: Graph, name: str) -> bool:
    return bool(name) and graph.tensors[name].dtype == "float32"


def _widen(span: Range, values: Array) -> Range:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return min(span[0], float(finite.min(initial=0))), max(span[1], float(finite.max(initial=0)))


def _round_graph(graph: Graph, precision: str, ranges: Mapping[str, Range]) -> Graph:
    """The graph with inputs, weights and float results rounded, except results that only a Relu or Clip reads."""
    tensors, constants, nodes = dict(graph.tensors), dict(graph.constants), list[Node]()
    names = graph.names()

    def round_off(source: str, name: str, span: Range) -> None:
        tensors[source] = tensors[name] = graph.tensors.get(name) or graph.tensors[source]
        if precision == "fp16":
            half = names.new(f"{name}/half")
            tensors[half] = replace(tensors[name], dtype="float16")
            nodes.append(Node("Cast", (source,), (half,), {"to": "float16"}, half))
            nodes.append(Node("Cast", (half,), (name,), {"to": "float32"}, name))
        else:
            nodes.append(Node("FakeQuantize", (source,), (name,), _steps(span, precision), name))

    floats = [name for name in graph.inputs if _is_float(graph, name) and np.ptp(ranges[name])]
    read = {name: names.new(f"{name}/rounded") for name in floats}
    for source, name in read.items():
        round_off(source, name, ranges[source])
    for node in graph.nodes:
        if node.op in PRODUCTS and node.inputs[1] in constants:
            weight = node.inputs[1]
            constants[weight] = _rounded_weight(graph.constants[weight], node, precision)
        own = [each for each in node.outputs if _is_rounded(graph, each) and np.ptp(ranges[each])]
        exact = {each: names.new(f"{each}/exact") for each in own}
        outputs = tuple(exact.get(each, each) for each in node.outputs)
        nodes.append(replace(node, inputs=tuple(read.get(each, each) for each in node.inputs), outputs=outputs))
        for each in own:
            round_off(exact[each], each, ranges[each])
    return replace(graph, nodes=tuple(nodes), tensors=tensors, constants=constants)


LIMITS = ("Relu", "Clip")


def _is_rounded(graph: Graph, name: str) -> bool:
    reader = graph.only_reader(name) if name else None
    return _is_float(graph, name) and (reader is None or reader.op not in LIMITS)


def _steps(span: Range, precision: str) -> dict[str, float | int | str]:
    """The attributes of a FakeQuantize over a range that includes 0."""
    low = int(np.iinfo(precision).min)
    scale = (span[1] - span[0]) / LEVELS[precision]
    return {"scale": scale, "zero_point": round(low - span[0] / scale), "dtype": precision}


def _rounded_weight(w: Array, node: Node, precision: str) -> Array:
    """Weights rounded with a scale per output channel, per tensor for ConvTranspose; the largest stays exact."""
    if precision == "fp16":
        return w.astype(np.float16).astype(np.float32)
    channel = 0 if node.op in ("Conv", "Gemm") else w.ndim - 1
    others = tuple(axis for axis in range(w.ndim) if axis != channel and node.op != "ConvTranspose")
    scale = np.abs(w).max(axis=others or None, keepdims=True) / (LEVELS[precision] // 2)
    scale = np.where(scale > 0, scale, np.float32(1))
    return np.asarray(np.rint(w / scale) * scale).astype(np.float32)


STEPS = 2.0
"""An error of this many of the model's coarsest steps is always attributed to rounding."""


class Nearness:
    """Comparison of a program's outputs with those of its quantised model."""

    def __init__(self, graph: Graph, precision: str) -> None:
        self.graph, self.precision = graph, precision
        scales = [SCALE(node) for node in graph.nodes if node.op == "FakeQuantize"]
        self.coarsest = max(scales) if scales and precision in LEVELS else None
        """The coarsest scale of a model that brings its own quantisation; None without one."""

    def far(
        self, feed: Mapping[str, Array], wanted: Mapping[str, Array], found: Mapping[str, Array]
    ) -> str | None:
        """The first output of a sample whose error rounding does not explain; None if all are near."""
        apart = {name: _difference(wanted[name], found[name]) for name in self.graph.outputs}
        strange = [name for name, each in apart.items() if self._strange(each)]
        if not strange:
            return None
        best = ideal(self.graph, self.precision, Samples({name: value[None] for name, value in feed.items()}))
        return next((name for name in strange if best.get(name, LEVELS["int16"]) >= ENOUGH["int8"]), None)

    def lost_outputs(self, wanted: Mapping[str, Array], found: Mapping[str, Array]) -> set[str]:
        """The outputs of a sample that are hardly more than noise."""
        apart = {name: _difference(wanted[name], found[name]) for name in self.graph.outputs}
        least = LEAST.get(self.precision, -inf)
        return {name for name, each in apart.items() if each.signal and _sqnr(each) < least}

    def _strange(self, difference: Difference) -> bool:
        if self.coarsest is None:
            return False
        return _sqnr(difference) < LEAST["int8"] and difference.largest > STEPS * self.coarsest


def _sqnr(difference: Difference) -> float:
    """Signal to noise in dB."""
    found = difference.sqnr_db
    return inf if found is None else found


def _difference(wanted: Array, found: Array) -> Difference:
    """The difference of floats; other types are not compared."""
    apart = Difference()
    if wanted.dtype.kind == "f":
        apart.add(wanted, found)
    return apart
