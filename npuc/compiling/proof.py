"""Self-check of a compile: before a program is returned it runs on its target's own chip model, on samples.

There are four comparisons: the simulator with the integer network under onnxruntime, bit for bit, as in `npuc
verify` (for a floating-point program every layer with onnxruntime, up to rounding); the graph after the passes
with the user's file, both under onnxruntime, and each rewrite of the frontend by itself; the outputs of a
quantised model with those of its program; and a program of several parts, its NPU parts in float, with the user's
file. A failure is a defect of npuc, and nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npuc.driver import Compilation, batch_of, input_types
from npuc.errors import Mismatch, ModelError, NpucError, Problem
from npuc.frozen import frozen
from npuc.ir import Array, Graph
from npuc.program import Program
from npuc.reference import graph_session
from npuc.regions.artefact import is_composite
from npuc.regions.running import CompositeRunner, sample_by_sample
from npuc.samples.loading import Samples, varied
from npuc.samples.structured import row
from npuc.storage.mapped import trim
from npuc.target import FLOATING, Request, Runner, Target, quickest
from npuc.verification.bits import Bits
from npuc.verification.equivalence import Equivalence, Original
from npuc.verification.floating import Layers
from npuc.verification.metrics import same_type
from npuc.verification.nearness import Nearness
from npuc.verification.original import agree

REMEDY = (
    "this is a defect of npuc, not of the model: report it with the model and this command; "
    "--proof off writes the program all the same, and npuc verify --bisect then makes a small case of it"
)
NEWER = "try the newest onnxruntime, since older ones compute some new operators wrongly; otherwise "
NOISE = "it is hardly more than noise on the samples: the precision does not suit the network"
FIND = "find the layer with `npuc verify --sort`, and --deny it, or use a precision with more bits"
CANNOT = ("E507", "E509")
"""Errors of a chip model that cannot run here for lack of a tool or of memory: nothing is proved then."""


@frozen
class Proof:
    """The results of the self-check."""

    samples: int = 0
    bit_exact: bool | None = None
    """Simulator and integer network agree in every bit; None if there is no such network or nothing was run."""
    model: bool | None = None
    """The graph after the passes agrees with the model; None if onnxruntime cannot run it."""


def proved(found: Compilation, request: Request) -> Program:
    """The program, checked as the options demand; its report records the results.

    Raises Mismatch (E603) if it does not compute what the model does.
    """
    proof, report, options = Proof(), dict(found.program.manifest["report"]), request.options
    if options.proof != "off":
        options.begin("proving the program")
        prover = _Prover(found, request.model, request.target, few_runs=options.proof == "one")
        proof = prover.proof()
        if noisy := [each.as_json() for each in prover.warnings()]:
            report["warnings"] = [*report.get("warnings", ()), *noisy]
    report["proof"] = asdict(proof)
    return replace(found.program, manifest={**found.program.manifest, "report": report})


class _Prover:
    """A program with its references. few_runs: one sample is enough."""

    def __init__(self, found: Compilation, model: Path, target: Target, *, few_runs: bool) -> None:
        self.program, self.graph, self.one = _as_read(found.program), found.graph, few_runs
        self.target = target
        self.calibration = found.samples
        self.samples = varied(input_types(found.graph)) if found.samples.synthetic else found.samples
        self.near = Nearness(found.graph, found.program.precision)
        self.lost: set[str] | None = None
        """Outputs that are hardly more than noise on every sample so far; None before the first."""
        self.said: list[Problem] = []
        """What the model is read as, once it was."""
        try:
            self.model: Equivalence | None = Equivalence(model, found.graph)
        except ModelError:
            self.model = None

    def proof(self) -> Proof:
        """The results on the calibration samples, or on one sample of each kind if these are synthetic."""
        floating, count = self.program.precision in FLOATING, 0
        for batch in self.samples.batches(1 if self.one else batch_of(self.program)):
            sound, wanted = self._sound(batch)
            if sound is not None:
                if self.one and self.model is not None:
                    self.model.release()
                trim()
                if not self._runs(sound, wanted):
                    return Proof(model=None if self.model is None else True)
                count += len(sound)
                if self.one:
                    break
        return Proof(count, None if floating or not count else True, True if self.model and count else None)

    def _sound(self, batch: Samples) -> tuple[Samples | None, Sequence[Feed]]:
        """The samples of a batch with finite model outputs, and those outputs, if onnxruntime runs the model.

        The graph is compared with the model on them. Raises Mismatch (E603) if the two differ.
        """
        if self.model is None:
            return batch, ()
        kept: list[int] = []
        outputs: list[Feed] = []
        for index, feed in enumerate(batch.feeds()):
            try:
                wanted = self.model.expected(feed)
            except ModelError:
                self.model = None
                return batch, ()
            if all(np.isfinite(each).all() for each in wanted.values() if each.dtype.kind == "f"):
                kept.append(index)
                outputs.append(wanted)
                self.said = judged(self.model.original, feed, wanted)
                self._expect_same(self.model.differing(feed, wanted))
        if not kept:
            return None, ()
        return replace(batch, inputs={name: each[kept] for name, each in batch.inputs.items()}), outputs

    def _expect_same(self, differing: str | None) -> None:
        if differing is None:
            return
        node = self.graph.producers[differing]
        names = node.sources or (node.name,)
        said = "the graph after the passes computes other values than the model"
        raise Mismatch.of([Problem("E603", said, names[0], node.op, differing, remedy=NEWER + REMEDY)])

    def _runs(self, samples: Samples, wanted: Sequence[Feed]) -> bool:
        """Compares the program on samples; returns whether the chip model can run here. Raises Mismatch (E603).

        wanted: the model's outputs on the samples, if onnxruntime runs it.
        """
        try:
            shown: dict[str, Array] = {}
            outputs = self._runner(samples.inputs, shown.__setitem__)
        except NpucError as error:
            if any(each.code in CANNOT for each in error.problems):
                return False
            raise _trapped(error) from error
        for index, feed in enumerate(samples.feeds()):
            seen, given = (
                {name: each[index, ...] for name, each in values.items()} for values in (shown, outputs)
            )
            self._expect(feed, seen, given)
            if wanted:
                expect_types(wanted[index], given)
                self._expect_near(feed, wanted[index], given)
        return True

    def _expect_near(self, feed: Feed, wanted: Feed, outputs: Feed) -> None:
        """Raises Mismatch (E603) if an output of the program is far from the quantised model's.

        Synthetic samples unlike those used for calibration may saturate: then a calibration sample must be far
        too.
        """
        lost = self.near.lost(wanted, outputs)
        self.lost = lost if self.lost is None else self.lost & lost
        far = self.near.far(feed, wanted, outputs)
        if far is not None and self.samples.synthetic:
            far = self.near.far(*self._calibrated)
        if far is not None:
            node = self.graph.producers[far]
            names = node.sources or (node.name,)
            raise _defect("the program's values are not the quantised model's", names[0], node.op, far)

    def warnings(self) -> list[Problem]:
        """Warnings of what the model is read as (W303), and of outputs that are hardly more than noise (W302)."""
        lost = self.lost or set[str]()
        if lost and self.samples.synthetic:
            lost = lost & self.near.lost(*self._calibrated[1:])
        noisy = [name for name in self.graph.outputs if name in lost]
        return self.said + [Problem("W302", NOISE, tensor=name, remedy=FIND) for name in noisy]

    @cached_property
    def _calibrated(self) -> tuple[Feed, Feed, Feed]:
        """A calibration sample, the model's outputs for it, and the program's."""
        batch = next(iter(self.calibration.batches(1)))
        (feed,), outputs = batch.feeds(), self._runner(batch.inputs)
        assert self.model is not None
        return feed, self.model.expected(feed), {name: each[0] for name, each in outputs.items()}

    @cached_property
    def _runner(self) -> Runner:
        return self.target.runner(self.program, quickest(self.target))

    @cached_property
    def _expect(self) -> Callable[[Feed, Feed, Feed], None]:
        """The check of a sample, the tensors that the simulator shows, and its outputs. Raises Mismatch (E603)."""
        if self.program.precision in FLOATING:
            return _LayerProof(self.program, few_runs=self.one)
        return _BitProof(self.program, self.target, few_runs=self.one)


Feed = dict[str, Array]


def judged(original: Original, feed: Feed, wanted: Feed) -> list[Problem]:
    """A warning (W303) for each deliberate difference from the model, after every rewrite was proved on a sample.

    wanted: the model's outputs. Raises ModelError (E105) if onnxruntime contradicts itself, Mismatch (E603) for a
    rewrite that changes more than the noise of the model's own formats.
    """
    original.expect_one_meaning(feed, wanted)
    read, wrong = original.rewritten(feed, wanted)
    if wrong is not None:
        raise _defect(f"a rewrite of the model changes its values: {wrong}", None, None, None)
    refused = "onnxruntime refuses the model as it is, and judges what npuc reads it as: {}"
    apart = {name: "exactly" if db is None else f"up to {db:.1f} dB" for name, db in read.items()}
    texts = [*(refused.format(name) for name in original.read_as)]
    texts += [f"{name}, which is the model under onnxruntime {near}" for name, near in apart.items()]
    return [Problem("W303", text) for text in texts]


def expect_types(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises Mismatch (E603) unless outputs have the shapes and element types of the model's."""
    for name, each in wanted.items():
        other = found.get(name)
        if not isinstance(each, np.ndarray) or each.dtype.kind not in "fiub":
            continue
        if not same_type(each, other):
            given = "nothing" if other is None else f"{getattr(other, 'dtype', '')} {list(np.shape(other))}"
            said = f"the output is {given}, and the model's {each.dtype} {list(each.shape)}"
            raise _defect(said, None, None, name)


def entirely(program: Program, graphs: Sequence[Graph], request: Request, samples: Samples) -> Program:
    """A program of several parts, proved as a whole: its NPU parts in float, its host regions as they will run.

    graphs: of the NPU parts, in order. samples: as for `proved`; empty if an input is no tensor of numbers. Raises
    Mismatch (E603) if it does not compute what the user's file does.
    """
    one = request.options.proof == "one"
    if request.options.proof == "off" or not samples.inputs:
        return program
    try:
        original = Original(request.model, dict(request.options.bind))
    except ModelError:
        return program
    waiting = iter(graphs)

    def in_float(_part: Program) -> Runner:
        graph = next(waiting)
        return sample_by_sample(graph_session(graph, graph.outputs), graph.outputs)

    said: list[Problem] = []
    runner = CompositeRunner(_as_read(program), in_float) if is_composite(program) else in_float(program)
    for batch in samples.batches(1):
        (feed,) = batch.feeds()
        try:
            wanted, again = original.run(feed), original.run(feed)
        except ModelError:
            continue  # an index out of range, for instance: such samples are the host's to refuse
        if any(not agree(each, again[name]) for name, each in wanted.items()):
            break  # random numbers
        said = judged(original, feed, wanted)
        found = {name: row(values, 0) for name, values in runner(batch.inputs).items()}
        expect_types(wanted, found)
        apart = original.form.beyond(feed, wanted, found)
        if apart is not None:
            raise _defect("the parts together compute other values than the model", None, None, apart)
        if one:
            break
    report = dict(program.manifest["report"])
    if said:
        report["warnings"] = [*report.get("warnings", ()), *(each.as_json() for each in said)]
    return replace(program, manifest={**program.manifest, "report": report})


class _BitProof:
    """Compares the simulator's integers with those of the integer network."""

    def __init__(self, program: Program, target: Target, *, few_runs: bool) -> None:
        self.bits = Bits(program, target, few_runs=few_runs, confined=False)

    def __call__(self, feed: Feed, seen: Feed, outputs: Feed) -> None:
        """Raises Mismatch (E603) with the first layer that differs."""
        bits = self.bits
        bits.add(feed, seen, outputs)
        for layer in bits.faults():
            said = "the chip model computes other values than the integer network"
            if not bits.differing.get(layer["tensor"]):
                said = "nothing shows what the program computes for this layer"
            tensor = bits.tensors[layer["tensor"]]["float"]
            raise _defect(said, next(iter(layer["nodes"]), None), layer["op"], tensor)
        for name in bits.strayed:
            raise _defect("the host steps give other values than the integer network", None, None, name)


class _LayerProof:
    """Compares the layers of a floating-point program with onnxruntime, each on the machine's own inputs."""

    def __init__(self, program: Program, *, few_runs: bool) -> None:
        self.layers = Layers(program, confined=False, few_runs=few_runs)

    def __call__(self, feed: Feed, seen: Feed, outputs: Feed) -> None:
        """Raises Mismatch (E603) with the first layer whose error rounding does not explain."""
        wrong = self.layers.wrong(feed, {**seen, **outputs})
        if wrong is not None:
            said = "the chip model computes other values than onnxruntime, by more than rounding"
            raise _defect(said, next(iter(wrong.nodes), None), wrong.op, wrong.tensor)


def _as_read(program: Program) -> Program:
    """The program with its manifest as it will be read back from the artefact."""
    return replace(program, manifest=json.loads(json.dumps(program.manifest)))


def _trapped(error: NpucError) -> NpucError:
    """An error of the chip model, turned into a defect of npuc."""
    return Mismatch.of(
        replace(each, code="E603", reason=f"the chip model refuses the program: {each.reason}", remedy=REMEDY)
        for each in error.problems
    )


def _defect(reason: str, node: str | None, op: str | None, tensor: str | None) -> NpucError:
    return Mismatch.of([Problem("E603", reason, node=node, op=op, tensor=tensor, remedy=REMEDY)])
