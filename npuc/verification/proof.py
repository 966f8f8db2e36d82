"""A compile proves itself: before a program is given out it runs on its target's own chip model, on samples.

Two comparisons. The simulator with the integer network under onnxruntime, bit for bit, as `npuc verify` makes it
(of a floating-point program every layer with onnxruntime, within what rounding explains); and the graph after the
passes with the model, both under onnxruntime. What fails here is a defect of npuc, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from npuc.driver import Compilation, Shapes, batch_of, compilation, input_types
from npuc.errors import Mismatch, ModelError, NpucError, Problem
from npuc.ir import Array, Graph
from npuc.pipeline import Hook
from npuc.program import Program, as_loaded
from npuc.storage.data import Samples, varied
from npuc.target import FLOATING, Options, Runner, Target

PROOFS = ("off", "one", "all")
REMEDY = (
    "this is a defect of npuc, not of the model: report it with the model and this command; "
    "--proof off writes the program all the same, and npuc verify --bisect then makes a small case of it"
)
TOOL = "E507"
"""The code of a chip model that cannot run here: then nothing is proved."""


@dataclass(frozen=True)
class Proof:
    """What was proved of a program."""

    samples: int = 0
    bit_exact: bool | None = None
    """Simulator and integer network agree in every bit; None where there is none, or nothing was run."""
    model: bool | None = None
    """The graph after the passes agrees with the model; None where onnxruntime cannot run it."""


def compile_model(
    model: Path,
    target: Target,
    options: Options,
    shapes: Shapes,
    calibration: Sequence[Path] = (),
    hook: Hook | None = None,
) -> tuple[Program, Samples]:
    """The program of a model, proved as the options ask, and the samples it was calibrated on.

    The report of its manifest says what was proved. Raises every problem of the model or the target as one
    NpucError, and Mismatch (E603) for a program that does not do what the model says.
    """
    found = compilation(model, target, options, shapes, calibration, hook)
    return proved(found, model, target, options), found.samples


def proved(found: Compilation, model: Path, target: Target, options: Options) -> Program:
    """The program, whose report says what was proved. Raises Mismatch (E603)."""
    samples = _samples(found, options.proof)
    proof = Proof()
    if samples is not None:
        options.begin("proving the program")
        agrees = _same_meaning(model, found.graph, samples)
        proof = replace(_computes(as_loaded(found.program), target, samples), model=agrees)
    report = {**found.program.manifest["report"], "proof": asdict(proof)}
    return replace(found.program, manifest={**found.program.manifest, "report": report})


def _samples(found: Compilation, wanted: str) -> Samples | None:
    """One sample or all; those of calibration, or one of each kind where there are none."""
    if wanted == "off":
        return None
    samples = varied(input_types(found.graph)) if found.samples.synthetic else found.samples
    return samples.first(1) if wanted == "one" else samples


def _same_meaning(model: Path, graph: Graph, samples: Samples) -> bool | None:
    """Whether model and graph were compared: they agree. Raises Mismatch (E603) where they do not."""
    from npuc.verification.equivalence import Equivalence

    try:
        both = Equivalence(model, graph)
        differing = next((name for name in map(both.differing, samples.feeds()) if name is not None), None)
    except ModelError:
        return None
    if differing is None:
        return True
    node = graph.producers[differing]
    names = node.sources or (node.name,)
    raise _defect("the graph after the passes computes other values than the model", names[0], node.op, differing)


def _computes(program: Program, target: Target, samples: Samples) -> Proof:
    """The proof of a program as its artefact has it. Raises Mismatch (E603)."""
    try:
        run = target.runner(program)
        if program.precision in FLOATING:
            _expect_layers(program, run, samples)
        else:
            _expect_bits(program, target, run, samples)
    except Mismatch:
        raise
    except NpucError as error:
        if any(each.code == TOOL for each in error.problems):
            return Proof()
        raise _trapped(error) from error
    return Proof(len(samples), None if program.precision in FLOATING else True)


def _trapped(error: NpucError) -> NpucError:
    """The chip model's own words, as a defect of npuc."""
    return Mismatch.of(
        replace(each, code="E603", reason=f"the chip model refuses the program: {each.reason}", remedy=REMEDY)
        for each in error.problems
    )


def _defect(reason: str, node: str | None, op: str | None, tensor: str | None) -> NpucError:
    return Mismatch.of([Problem("E603", reason, node=node, op=op, tensor=tensor, remedy=REMEDY)])


@dataclass(frozen=True)
class _Run:
    """A sample, what the simulator shows of it, and its outputs."""

    feed: dict[str, Array]
    seen: dict[str, Array]
    outputs: dict[str, Array]


def _runs(program: Program, run: Runner, samples: Samples) -> Iterator[_Run]:
    for batch in samples.batches(batch_of(program)):
        shown: dict[str, Array] = {}
        outputs = run(batch.inputs, shown.__setitem__)
        for index, feed in enumerate(batch.feeds()):
            yield _Run(
                feed,
                {name: values[index, ...] for name, values in shown.items()},
                {name: values[index, ...] for name, values in outputs.items()},
            )


def _expect_bits(program: Program, target: Target, run: Runner, samples: Samples) -> None:
    """Raises Mismatch (E603) with the first layer that differs from the integer network."""
    from npuc.verification.bits import Bits

    bits = Bits(program.evidence, program, target, few_runs=len(samples) < 3)
    for each in _runs(program, run, samples):
        bits.add(each.feed, each.seen, each.outputs)
    reason = "the chip model computes other values than the integer network"
    for layer in bits.faults():
        count = bits.differing.get(layer["tensor"])
        said = reason if count else "nothing shows what the program computes for this layer"
        raise _defect(said, next(iter(layer["nodes"]), None), layer["op"], bits.tensors[layer["tensor"]]["float"])
    for name in bits.strayed:
        raise _defect("the host steps give other values than the integer network", None, None, name)


def _expect_layers(program: Program, run: Runner, samples: Samples) -> None:
    """Raises Mismatch (E603) with the first layer of a floating-point program that rounding does not explain."""
    from npuc.verification.floating import Layers

    layers = Layers(program.evidence, program.precision)
    for each in _runs(program, run, samples):
        wrong = layers.wrong(each.feed, {**each.seen, **each.outputs})
        if wrong is not None:
            reason = "the chip model computes other values than onnxruntime, by more than rounding"
            raise _defect(reason, next(iter(wrong.nodes), None), wrong.op, wrong.tensor)
