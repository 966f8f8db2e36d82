"""Self-check of a compile: before a program is returned it runs on its target's own chip model, on samples.

There are four comparisons: the simulator with the integer network under onnxruntime, bit for bit, as in `npuc
verify` (for a floating-point program every layer with onnxruntime, up to rounding); the graph after the passes
with the user's file, both under onnxruntime, and each rewrite of the frontend by itself; the outputs of a
quantised model with those of its program; and a program of several parts, its NPU parts in float, with the user's
file. A failure is a defect of npuc, and nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import DataError, Mismatch, ModelError, NpucError, Problem
from npuc.frozen import frozen
from npuc.ir import Array, Graph
from npuc.program import Program
from npuc.quantize.improvement.search import teaches
from npuc.reference import graph_session
from npuc.regions.artefact import is_composite
from npuc.regions.assembling import LoweredPart
from npuc.regions.running import LIMITS, CompositeRunner, sample_by_sample
from npuc.running import batch_of, input_types, program_inputs
from npuc.samples.loading import Samples, load, varied_samples
from npuc.samples.sources import files_of
from npuc.samples.structured import row
from npuc.storage.mapped import trim
from npuc.target import FLOATING, Request, Runner, Target, quickest
from npuc.verification.batches import FloatingLayers
from npuc.verification.bits import BitDifferences
from npuc.verification.criterion import Nearness, criterion
from npuc.verification.equivalence import Equivalence, Original
from npuc.verification.exact import jumping
from npuc.verification.losses import WholeJudge
from npuc.verification.metrics import Outputs, same_type
from npuc.verification.original import is_same

if TYPE_CHECKING:
    import onnx

REMEDY = (
    "this is a defect of npuc, not of the model: report it with the model and this command; "
    "--proof off writes the program all the same, and npuc verify --bisect then makes a small case of it"
)
NEWER = "try the newest onnxruntime, since older ones compute some new operators wrongly; otherwise "
NOISE = "it is hardly more than noise on the samples: the precision does not suit the network"
COARSE = "it is right to {:.1f} dB on the samples, and {} allows {:.1f} dB: small values may have few digits"
ENOUGH = 40.0
"""Signal to noise in dB of an output from which on nobody is warned."""
FIND = "find the layer with `npuc verify --bisect`, and --deny it, or use a precision with more bits"
CANNOT = ("E507", "E509")
"""Errors of a chip model that cannot run here for lack of a tool or of memory."""
UNPROVED = "--proof off writes the program although it was not run"
UNRUN = f"give samples that the model can process with --calibration DATA.npz; {UNPROVED}"
WRITE = "write the node with operators that onnxruntime runs"
INFINITE = "the model's results are not finite numbers on any sample"


@frozen
class Proof:
    """The results of the self-check."""

    samples: int = 0
    bit_exact: bool | None = None
    """Simulator and integer network agree in every bit; None if there is no such network or nothing was run."""
    model: bool | None = None
    """The graph after the passes agrees with the model."""


@frozen
class Prover:
    """The self-check of a request's programs: part by part as they are lowered, then as a whole."""

    request: Request

    def part(self, lowered: LoweredPart, model: Path) -> Program:
        """The program of a part, checked against a model. Raises as `prove`."""
        return prove(lowered, replace(self.request, model=model))

    def whole(self, program: Program, graphs: Sequence[Graph], samples: Samples) -> Program:
        """The program of all parts, checked against the user's file on the samples that calibrated it.

        graphs: of its NPU parts, in order. Raises as `entirely`, and DataError (E401) if an input needs the user's
        samples.
        """
        if self.request.options.proof == "off":
            return program
        if not graphs:
            samples = self._of_host(program)
        elif samples.synthetic:
            samples = varied_samples(program_inputs(program))
        return entirely(program, graphs, self.request, samples)

    def judge(
        self, program: Program, lowered: Sequence[LoweredPart], models: Iterable[onnx.ModelProto], samples: Samples
    ) -> tuple[Program, Collection[int]]:
        """The program of all parts with what they cost the model's outputs, and the parts to compute in float.

        models: the parts in float. The host may take a tenth of the model's MACs for the outputs' sake, if the
        precision may be mixed. Nothing is judged on samples that do not teach, or at level 0.
        """
        options = self.request.options
        if not lowered or options.level == "0" or options.precision in FLOATING or not teaches(samples):
            return program, ()
        options.begin("judging the whole model")
        judge = WholeJudge(program, lowered, models, samples)
        report = program.manifest["report"]
        if not judge.judged:
            return program, ()
        placed = [each for each in report["partitions"] if each["place"] == "npu"]
        moved = judge.spared([each["macs"] / (report["macs"] or 1) for each in placed]) if options.mixed else []
        if moved:
            return program, moved
        loss = asdict(judge.losses([each["path"] for each in placed]))
        return replace(program, manifest={**program.manifest, "report": {**report, "whole": loss}}), ()

    def _of_host(self, program: Program) -> Samples:
        """Samples for a program that the host runs."""
        types = program_inputs(program)
        if files_of(self.request.calibration):
            return load(self.request.calibration, types, types.keys(), self.request.options.input)
        try:
            return varied_samples(types)
        except DataError as error:
            remedy = "give samples with --calibration DATA.npz"
            raise unproved_error(DataError.of(replace(each, remedy=remedy) for each in error.problems)) from None


def prove(found: LoweredPart, request: Request) -> Program:
    """The program, checked as the options demand; its report records the results.

    Raises Mismatch (E603) if it does not compute what the model does, and what `unproved_error` gives where that
    cannot be told: nothing runs the model (E105, E110, E111), its values are random (E105) or never finite (E402),
    or the chip model cannot run here (E507, E509).
    """
    proof, report, options = Proof(), dict(found.program.manifest["report"]), request.options
    if options.proof != "off":
        options.begin("proving the program")
        prover = _PartProof(found, request.model, request.target, few_runs=options.proof == "one")
        proof = prover.proof()
        if noisy := [each.as_json() for each in prover.warnings()]:
            report["warnings"] = [*report.get("warnings", ()), *noisy]
    report["proof"] = asdict(proof)
    return replace(found.program, manifest={**found.program.manifest, "report": report})


class _PartProof:
    """A program with its references. few_runs: one sample is enough."""

    def __init__(self, found: LoweredPart, model: Path, target: Target, *, few_runs: bool) -> None:
        self.program, self.graph, self.one = _as_read(found.program), found.graph, few_runs
        self.target = target
        self.calibration = found.samples
        self.samples = varied_samples(input_types(found.graph)) if found.samples.synthetic else found.samples
        self.near = Nearness(found.graph, found.program.precision)
        self.lost: set[str] | None = None
        """Outputs that are hardly more than noise on every sample so far; None before the first."""
        self.said: list[Problem] = []
        """What the model is read as, once it was."""
        self.refusal: NpucError | None = None
        """Why the last of the samples that prove nothing does not."""
        try:
            self.path, self.model = model, Equivalence(model, found.graph)
        except ModelError as error:
            raise unproved_error(error) from None
        precise = found.program.precision in FLOATING
        jumps = partial(jumping, self.model.original.form, found.program.precision) if precise else None
        self.outputs = Outputs(found.graph.outputs, jumps)

    def proof(self) -> Proof:
        """The results on the calibration samples, or on one sample of each kind if these are synthetic."""
        floating, count = self.program.precision in FLOATING, 0
        for batch in self.samples.batches(1 if self.one else batch_of(self.program)):
            sound, wanted = self._sound(batch)
            if sound is not None:
                if self.one:
                    self.model.release()
                trim()
                self._runs(sound, wanted)
                count += len(sound)
                if self.one:
                    break
        if not count:
            count = self._runs_without_numbers()
        return Proof(count, None if floating else True, True)

    def _runs_without_numbers(self) -> int:
        """Runs an integer program on a sample on which the model gives NaN or infinity: its bits are defined.

        Raises what `unproved_error` gives for a floating-point program, and where the model does not run at all.
        """
        if self.refusal is not None or self.program.precision in FLOATING:
            raise unproved_error(self.refusal or DataError("E402", INFINITE))
        sample = next(iter(self.samples.batches(1)))
        self._runs(sample, ())
        return 1

    def _sound(self, batch: Samples) -> tuple[Samples | None, Sequence[Feed]]:
        """The samples of a batch on which the model gives finite outputs, and those outputs.

        The graph is compared with the model on them. Raises Mismatch (E603) if the two differ.
        """
        kept: list[int] = []
        outputs: list[Feed] = []
        for index, feed in enumerate(batch.feeds()):
            try:
                wanted = self.model.original.run(feed, twice=True)
            except ModelError as error:
                self.refusal = error
                continue
            if all(np.isfinite(each).all() for each in wanted.values() if each.dtype.kind == "f"):
                kept.append(index)
                outputs.append(wanted)
                self.said = judge_rewrites(self.model.original, feed, wanted)
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
        problem = Problem("E603", said, names[0], node.op, differing, remedy=NEWER + REMEDY)
        raise self._explain(Mismatch.of([problem]))

    def _explain(self, error: NpucError) -> NpucError:
        """A difference from the model; under another evaluator than onnxruntime either of both may be wrong."""
        return disputed_error(error, self.model.original.form.substitute)

    def _runs(self, samples: Samples, wanted: Sequence[Feed]) -> None:
        """Compares the program on samples. Raises Mismatch (E603), and E507 or E509 for lack of a tool or memory.

        wanted: the model's outputs on the samples; empty if they are no numbers.
        """
        try:
            shown: dict[str, Array] = {}
            outputs = self._runner(samples.inputs, shown.__setitem__)
        except NpucError as error:
            if any(each.code in CANNOT for each in error.problems):
                raise unproved_error(error) from None
            raise _chip_defect(error) from error
        for index, feed in enumerate(samples.feeds()):
            seen, given = (
                {name: each[index, ...] for name, each in values.items()} for values in (shown, outputs)
            )
            self._expect(feed, seen, given)
            if wanted:
                expect_types(wanted[index], given)
                self._expect_near(feed, wanted[index], given)
                self.outputs.add(feed, wanted[index], given, None)

    def _expect_near(self, feed: Feed, wanted: Feed, outputs: Feed) -> None:
        """Raises Mismatch (E603) if an output of the program is far from the quantised model's.

        Synthetic samples unlike those used for calibration may saturate: then a calibration sample must be far
        too.
        """
        lost = self.near.lost_outputs(wanted, outputs)
        self.lost = lost if self.lost is None else self.lost & lost
        far = self.near.far(feed, wanted, outputs)
        if far is not None and self.samples.synthetic:
            far = self.near.far(*self._calibrated)
        if far is not None:
            node = self.graph.producers[far]
            names = node.sources or (node.name,)
            raise self._explain(
                _defect("the program's values are not the quantised model's", names[0], node.op, far)
            )

    def warnings(self) -> list[Problem]:
        """Warnings of what the model is read as (W303), and of outputs that are hardly more than noise (W302)."""
        lost = self.lost or set[str]()
        if lost and self.samples.synthetic:
            lost = lost & self.near.lost_outputs(*self._calibrated[1:])
        noisy = [name for name in self.graph.outputs if name in lost]
        found = [Problem("W302", NOISE, tensor=name, remedy=FIND) for name in noisy]
        return [*self.said, *found, *(each for each in self._coarse() if each.tensor not in noisy)]

    def _coarse(self) -> Iterator[Problem]:
        """A warning (W304) for each output that misses the criterion of `npuc verify` in floating point."""
        poor = {
            name: db
            for name, each in self.outputs.differences.items()
            if each.signal and (db := each.sqnr_db) is not None and db < ENOUGH
        }
        if not poor or self.program.precision not in FLOATING:
            return
        tolerance = criterion(self.path, self.program, self.samples.first(1))
        wrong = self.outputs.wrong(tolerance)
        for name in poor.keys() & wrong:
            said = COARSE.format(poor[name], self.program.precision, tolerance.of_output(name)[0])
            yield Problem("W304", said, tensor=name, remedy=FIND)

    @cached_property
    def _calibrated(self) -> tuple[Feed, Feed, Feed]:
        """A calibration sample, the model's outputs for it, and the program's."""
        batch = next(iter(self.calibration.batches(1)))
        (feed,), outputs = batch.feeds(), self._runner(batch.inputs)
        return feed, self.model.expected_outputs(feed), {name: each[0] for name, each in outputs.items()}

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


def unproved_error(error: NpucError) -> NpucError:
    """A refusal of a program that cannot be run, or has nothing to be compared with."""
    return type(error).of(
        replace(each, remedy=UNRUN if each.remedy is None and each.code == "E105" else f"{each.help}; {UNPROVED}")
        for each in error.problems
    )


def disputed_error(error: NpucError, substitute: str) -> NpucError:
    """A difference from the model: a refusal (E105) where onnxruntime's substitute is the only witness."""
    if not substitute:
        return error
    reason = "npuc and what takes onnxruntime's place read the model differently; "
    found = (replace(each, code="E105", reason=reason + substitute, remedy=None) for each in error.problems)
    return unproved_error(ModelError.of(found))


def judge_rewrites(original: Original, feed: Feed, wanted: Feed) -> list[Problem]:
    """A warning (W303) for each deliberate difference from the model, after every rewrite was proved on a sample.

    wanted: the model's outputs. Raises ModelError (E105) if onnxruntime contradicts itself, Mismatch (E603) for a
    rewrite that changes more than the noise of the model's own formats.
    """
    original.expect_one_meaning(feed, wanted)
    read, wrong = original.judge_rewrites(feed, wanted)
    if wrong is not None:
        raise _defect(f"a rewrite of the model changes its values: {wrong}", None, None, None)
    refused = "onnxruntime refuses the model as it is, and judges what npuc reads it as: {}"
    apart = {name: "exactly" if db is None else f"up to {db:.1f} dB" for name, db in read.items()}
    texts = [*(refused.format(name) for name in original.read_as)]
    texts += (
        [f"onnxruntime does not run the model, {substitute}"] if (substitute := original.form.substitute) else []
    )
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

    graphs: of the NPU parts, in order. samples: as for `prove`. Raises Mismatch (E603) if it does not compute
    what the user's file does, ModelError (E105) for a region that onnxruntime cannot run, or as `prove` does.
    """
    try:
        original = Original(request.model, dict(request.options.bind), request.options.input)
    except ModelError as error:
        raise unproved_error(error) from None
    waiting = iter(graphs)

    def in_float(_part: Program) -> Runner:
        graph = next(waiting)
        return sample_by_sample(graph_session(graph, graph.outputs), graph.outputs)

    said: list[Problem] = []
    refusal: NpucError | None = None
    runner = CompositeRunner(_as_read(program), in_float) if is_composite(program) else in_float(program)
    count = 0
    for batch in samples.batches(1):
        (feed,) = batch.feeds()
        try:
            wanted = original.run(feed, twice=True)
        except ModelError as error:  # of this sample only, perhaps: an index out of range
            refusal = error
            continue
        try:
            found, again = ({name: row(each, 0) for name, each in runner(batch.inputs).items()} for _ in range(2))
        except NpucError as error:
            raise _host_error(error, original.form.substitute) from error
        said = judge_rewrites(original, feed, wanted)
        free = original.form.resized_outputs(feed, wanted, found)
        expect_types({name: each for name, each in wanted.items() if name not in free}, found)
        apart = next((name for name in found if not is_same(found[name], again[name])), None)
        if apart is not None:
            raise unproved_error(ModelError("E105", "the host gives other values in every run", tensor=apart))
        apart = original.form.beyond(feed, wanted, found)
        if apart is not None:
            error = _defect("the parts together compute other values than the model", None, None, apart)
            raise disputed_error(error, original.form.substitute)
        count += 1
        if request.options.proof == "one":
            break
    if not count:
        assert refusal is not None
        raise unproved_error(refusal)
    report = dict(program.manifest["report"])
    report["proof"] = {**report["proof"], "model": True} if graphs else asdict(Proof(count, None, True))
    if said:
        report["warnings"] = [*report.get("warnings", ()), *(each.as_json() for each in said)]
    return replace(program, manifest={**program.manifest, "report": report})


def _host_error(error: NpucError, substitute: str) -> NpucError:
    """What to raise for a host region that does not run on a sample; substitute: of onnxruntime, for the model."""
    problem = error.problems[0]
    if problem.code in (*CANNOT, *LIMITS):
        return unproved_error(error)
    if not substitute:
        return _chip_defect(error, "the host refuses its part of the program")
    return unproved_error(ModelError("E105", problem.reason, node=problem.node, op=problem.op, remedy=WRITE))


class _BitProof:
    """Compares the simulator's integers with those of the integer network."""

    def __init__(self, program: Program, target: Target, *, few_runs: bool) -> None:
        self.bits = BitDifferences(program, target, few_runs=few_runs, confined=False)

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
        self.layers = FloatingLayers(program, confined=False, few_runs=few_runs)

    def __call__(self, feed: Feed, seen: Feed, outputs: Feed) -> None:
        """Raises Mismatch (E603) with the first layer whose error rounding does not explain."""
        wrong = self.layers.wrong(feed, {**seen, **outputs})
        if wrong is not None:
            said = "the chip model computes other values than onnxruntime, by more than rounding"
            raise _defect(said, next(iter(wrong.nodes), None), wrong.op, wrong.tensor)


def _as_read(program: Program) -> Program:
    """The program with its manifest as it will be read back from the artefact."""
    return replace(program, manifest=json.loads(json.dumps(program.manifest)))


def _chip_defect(error: NpucError, said: str = "the chip model refuses the program") -> NpucError:
    """An error of the chip model or of the host, turned into a defect of npuc."""
    return Mismatch.of(
        replace(each, code="E603", reason=f"{said}: {each.reason}", remedy=REMEDY) for each in error.problems
    )


def _defect(reason: str, node: str | None, op: str | None, tensor: str | None) -> NpucError:
    return Mismatch.of([Problem("E603", reason, node=node, op=op, tensor=tensor, remedy=REMEDY)])
