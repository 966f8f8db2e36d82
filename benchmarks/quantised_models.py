"""Quantised models on EasyNPU compared with onnxruntime's int8.

    python benchmarks/quantised_models.py MODEL.onnx .. [--level 0|1|2] [--count N] [--json]

For QDQ models with one int8 input. Each figure is the signal-to-noise ratio of the first output in dB, against
onnxruntime's exact int8, on noise: uniform; white with a mean and a contrast per input; and with neighbours alike.

float: the model's weights and limits; activations are not rounded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import click
import numpy as np
import onnx
from accuracy import decibels
from onnx import helper, numpy_helper

from npuc.ir import Array
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.text.terminal import as_json, table
from tests.compiled import compilation

SAMPLES = 32
"""Samples to compile with, of white noise and as many with neighbours alike."""
SHORTEST = 8
"""Axes with fewer elements (the channels of an image) have no neighbours."""


@dataclass(frozen=True)
class Row:
    """Signal-to-noise ratios in dB; the last two are those of npuc's programs."""

    model: str
    inputs: str
    float: float
    no_data: float
    samples: float


def noise(seed: int, count: int, shape: Sequence[int], *, alike: bool) -> Array:
    """int8 inputs with a mean and a contrast of their own, with as much energy in every octave if alike."""
    random, made = np.random.default_rng(seed), list[Array]()
    for _ in range(count):
        sizes = [1 << power for power in range(max(shape).bit_length() - 1)] if alike else [1]
        field = np.sum([_in_blocks(random, shape, size) for size in sizes], axis=0)
        values = random.uniform(64, 192) + random.uniform(16, 96) * field / field.std()
        made.append(np.clip(np.rint(values), 0, 255) - 128)
    return np.stack(made).astype(np.int8)


def _in_blocks(random: np.random.Generator, shape: Sequence[int], size: int) -> Array:
    places = [np.arange(extent) // (size if extent >= SHORTEST else 1) for extent in shape]
    return random.standard_normal([int(each[-1]) + 1 for each in places])[np.ix_(*places)]


class Model:
    """A QDQ model, and variants of it as bytes."""

    def __init__(self, path: Path) -> None:
        self.proto = onnx.load(path)
        for dim in self.proto.graph.input[0].type.tensor_type.shape.dim:
            dim.dim_value = dim.dim_value or 1
        graph = onnx.shape_inference.infer_shapes(self.proto).graph
        self.known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.input, self.nodes = graph.input[0].name, list(graph.node)
        self.shape = [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]

    def variant(self, nodes: Sequence[onnx.NodeProto], constants: dict[str, Array]) -> bytes:
        """The model with other nodes and more constants."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        del proto.graph.node[:], proto.graph.value_info[:]
        proto.graph.node.extend(nodes)
        proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        return proto.SerializeToString()

    def without_rounding(self) -> bytes:
        """The model in float with its limits."""
        ends, floats = {each.name for each in self.proto.graph.output}, set[str]()
        nodes, constants = list[onnx.NodeProto](), dict[str, Array]()
        for node in self.nodes:
            x, y = node.input[0], node.output[0]
            if node.op_type == "QuantizeLinear" and y not in ends:
                more, values = self._limit(node)
                nodes += more
                constants |= values
                floats.add(y)
            elif node.op_type == "DequantizeLinear" and x in floats:
                nodes.append(helper.make_node("Identity", [x], [y]))
            else:
                floats |= {y} if x in floats else set()  # data movement, of integers before
                nodes.append(node)
        return self.variant(nodes, constants)

    def _limit(self, node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
        """Nodes and constants that limit a tensor as a QuantizeLinear does, all but zeros."""
        x, y, scale, zero = node.input[0], node.output[0], *(self.known[name] for name in node.input[1:])
        limits = np.iinfo(zero.dtype)
        values = {"scale": scale, "low": limits.min - zero.astype(int), "high": limits.max - zero.astype(int)}
        steps = ["Div scale", "Clip low high", "Mul scale"]
        chain, last = list[onnx.NodeProto](), x
        for op, *names in map(str.split, steps):
            chain.append(helper.make_node(op, [last, *(f"{y}/{name}" for name in names)], [f"{y}/{op}"]))
            last = f"{y}/{op}"
        chain.append(helper.make_node("Sign", [x], [f"{y}/sign"]))
        chain.append(helper.make_node("Abs", [f"{y}/sign"], [f"{y}/any"]))
        chain.append(helper.make_node("Mul", [last, f"{y}/any"], [y]))
        return chain, {f"{y}/{name}": np.asarray(value, np.float32) for name, value in values.items()}


def rows(path: Path, level: str, count: int) -> Iterator[Row]:
    """The model's results, one row for each kind of inputs."""
    model = Model(path)
    uniform = np.random.default_rng(11).integers(-128, 128, (200, *model.shape)).astype(np.int8)[:count]
    white, alike = (noise(5 + kind, count, model.shape, alike=bool(kind)) for kind in (0, 1))
    mixed = np.concatenate([noise(kind, SAMPLES, model.shape, alike=bool(kind)) for kind in (0, 1)])
    programs = [_compile(path, model, level, samples) for samples in (None, mixed)]
    last = next(node for node in reversed(model.nodes) if node.op_type == "QuantizeLinear")
    zero = float(model.known[last.input[2]])
    for kind, inputs in {"uniform": uniform, "white": white, "alike": alike}.items():
        exact = _results(path.read_bytes(), inputs) - zero

        def sqnr(variant: bytes, inputs: Array = inputs, exact: Array = exact) -> float:
            found = decibels(_results(variant, inputs) - zero, exact)
            return np.inf if found is None else found

        yield Row(path.stem, kind, sqnr(model.without_rounding()), *(sqnr(each) for each in programs))


def _compile(path: Path, model: Model, level: str, samples: Array | None) -> bytes:
    """The integer network of npuc's program for EasyNPU."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "samples.npz"] if samples is not None else []
        if samples is not None:
            data.save(files[0], {model.input: samples})
        shapes = {model.input: tuple(model.shape)}
        program = compilation(Request(path, target("easynpu"), Options(level=level), files, shapes)).program
    return program.evidence["reference.onnx"]


def _results(model: bytes, inputs: Array) -> Array:
    run = session(model)
    name = run.get_inputs()[0].name
    return np.stack([run.run(None, {name: each})[0] for each in inputs]).astype(np.float64)


@click.command(help=__doc__)
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--level", type=click.Choice(["0", "1", "2"]), default="1")
@click.option("--count", type=click.IntRange(1, 200), default=200, help="Inputs of each kind.")
@click.option("--json", "as_data", is_flag=True)
def main(models: Sequence[Path], level: str, count: int, *, as_data: bool) -> None:
    """Prints the rows of all models."""
    found = [row for path in models for row in rows(path, level, count)]
    if as_data:
        click.echo(as_json([asdict(row) for row in found]))
        return
    click.echo(table(("model", "inputs", "float", "no data", "samples"), [astuple(row) for row in found]))


if __name__ == "__main__":
    main()
