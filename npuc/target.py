"""The interface of a target: a name, its passes, what it refuses, how it lowers and simulates; a request to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from npuc.errors import ArtefactError, DoesNotFit, Problem, UnsupportedOperator
from npuc.flag import Flag
from npuc.frozen import frozen
from npuc.images.description import Description
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.pipeline import Hook, Pass
from npuc.program import Program
from npuc.registry import target as target
from npuc.samples.loading import Samples
from npuc.storage.mapped import trim
from npuc.view import Heading, MemoryAnnotation, Timeline, by_nodes, in_turn

if TYPE_CHECKING:
    from npuc.quantize.calibration.histograms import HistogramSource
    from npuc.quantize.improvement.search import Trial, TrialNetwork
    from npuc.quantize.scales.model_scales import Steps
    from npuc.quantize.table import TableEntry

Observer = Callable[[str, Array], None]
"""Called with the name of an int8 tensor and its values (samples, *shape).

Elements that were not computed have a value outside int8.
"""


@dataclass(frozen=True)
class Options:
    """The user's options for a compilation, besides the model and its data."""

    machine: str | None = None
    precision: str = "int8"
    strict: bool = False
    method: str | None = None
    """The calibration method; None: the level's."""
    allow: tuple[str, ...] = ()
    """Inexact rewrites that may be used, by the target's names for them."""
    level: str = "1"
    """Effort spent on accuracy: a level of quantize.improvement."""
    histograms: HistogramSource | None = None
    """The source of tensors' histograms; None: quantize.calibration.histograms."""
    notify: Callable[[Sequence[Trial]], None] | None = None
    """Called with the steps tried for accuracy."""
    mixed: bool = False
    """Whether a few layers may be in int16, or run on the host, for accuracy."""
    scales: str | None = None
    """The rule for activation scales, one of npuc.storage.records.DEMANDS; None: the machine's own."""
    scales_in: Mapping[str, TableEntry] = field(default_factory=dict[str, "TableEntry"])
    """Scales and zero points that tensors must have, by the model's names."""
    one_scale: bool = False
    """Whether all channels of a tensor have the same scale, as a table says it."""
    layer: tuple[tuple[str, str], ...] = ()
    """Names of ONNX nodes, with * for any letters, and the precision that they shall have; the last one counts."""
    deny: tuple[str, ...] = ()
    """ONNX operators and nodes that must run on the host."""
    bind: tuple[tuple[str, float], ...] = ()
    """Scalar inputs to be replaced by constants, and their values."""
    input: tuple[Description, ...] = ()
    """The descriptions of image inputs: as given, from `driver` on bound to the model's."""
    inputs: tuple[str, ...] = ()
    """The tensors at which the part to compile begins; none: the model's inputs."""
    outputs: tuple[str, ...] = ()
    """Those at which it ends; none: the model's outputs."""
    stage: Callable[[str], None] | None = None
    """Called with the description of a stage that begins and may take long."""
    proof: str = "one"
    """Samples for the self-check of a program: "one", "all" of calibration, or "off"."""
    prefix: str | None = None
    """Prefix of the names of exported files and functions; None: npuc_ and the model's name."""

    flags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of the target's own flags, by name; absent ones have their default."""
    isa: InitVar[str | None] = None
    objective: InitVar[str | None] = None
    weights: InitVar[str | None] = None
    """Fields of npuc 0.1, which are now entries of `flags`."""

    def __post_init__(self, isa: str | None, objective: str | None, weights: str | None) -> None:
        old = {"isa": isa, "objective": objective, "weights": weights}
        given = {name: value for name, value in old.items() if value is not None}
        if given:
            object.__setattr__(self, "flags", {**self.flags, **given})

    @property
    def changes_inputs(self) -> bool:
        """Whether the program has other inputs than the model: bound ones, or frames."""
        return bool(self.bind) or any(each.fused for each in self.input)

    @property
    def steps(self) -> dict[str, Steps]:
        """The scales and zero points of `scales_in`."""
        return {name: each.steps for name, each in self.scales_in.items()}

    def precision_of(self, node: Node) -> str:
        """The precision that `layer` asks for a node of a graph; that of the program where it asks for none."""
        names = () if node.op in (*MOVEMENT, *CONVERSIONS) else node.sources
        found = [each for pattern, each in self.layer if any(matches(pattern, name) for name in names)]
        return found[-1] if found else self.precision

    def unlike(self, node: Node, *known: str) -> Problem | None:
        """Why the host computes a node: `layer` asks for a precision that is none of those known.

        known: those that the target's programs can have in a layer, besides the program's own.
        """
        asked = self.precision_of(node)
        if asked in (self.precision, *known):
            return None
        limit = ", ".join((self.precision, *known))
        reason = f"--layer asks for {asked}, which the program has not; the host computes it in fp32"
        return Problem("E202", reason, node.source, node.op, limit=limit)

    def flag(self, flag: Flag) -> str:
        """The value of a flag that a target declares."""
        return self.flags.get(flag.name, flag.values[0])

    def tell(self, tried: Sequence[Trial]) -> None:
        """Reports the steps tried for accuracy."""
        if self.notify is not None:
            self.notify(tried)

    def begin(self, what: str) -> None:
        """Reports the start of a stage that may take long; memory freed by the previous one is released."""
        trim()
        if self.stage is not None:
            self.stage(what)


def matches(pattern: str, name: str) -> bool:
    """Whether a name is a pattern's: * stands for any letters.

    >>> matches("stem/*", "stem/conv[1]"), matches("stem/conv[1]", "stem/conv1")
    (True, False)
    """
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def usual_options(target: Target) -> Options:
    """The default options for a target, with its default precision."""
    return Options(precision=target.precisions[0])


FLOATING = ("fp16", "fp32")
"""Precisions whose programs have neither an integer reference nor scales to calibrate."""


@frozen
class Origin:
    """The instruction that computed an element of a tensor, and its tile."""

    instruction: int
    text: str
    tile: tuple[int, ...] | None
    """Row and column of the tile among the instruction's tiles, if it has any."""


def last_writer(listing: Sequence[Mapping[str, Any]], tensor: str) -> Origin | None:
    """The last entry of a listing that computes a tensor, as its origin, if instructions have no tiles."""
    for entry in reversed(listing):
        if entry["tensor"] == tensor:
            return Origin(entry["index"], entry["text"], None)
    return None


class Runner(Protocol):
    """A program that simulates batch after batch."""

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        ...


def cycles_of(run: Runner) -> int | None:
    """Cycles of the last sample, if its chip model counts them."""
    return getattr(run, "cycles", None)


def layer_cycles_of(run: Runner) -> Sequence[int] | None:
    """Cycles of each layer of the last sample, if its chip model counts them."""
    return getattr(run, "layer_cycles", None)


@frozen
class Stored:
    """The location of a tensor while a program runs, and the encoding of its bytes."""

    where: str
    """The memory and addresses, as text for a message."""
    bytes: int
    """Size of a sample, from the tensor's first byte to its last."""
    unpack: Callable[[Array], Array]
    """Converts these bytes, (bytes,) uint8, to the tensor in its own shape."""


RECURRENT = ("LSTM", "GRU", "RNN")
"""ONNX operators that are computed step after step."""
ALTERNATING = Problem(
    "E202",
    "its steps would alternate with those of the host",
    limit="networks without recurrence",
    remedy="a target that runs whole steps (bm1684 in fp32, nvdla-full in fp16 for a batch of 1)",
)
"""Why the host runs them if the machine lacks a function, or a movement, of every step."""


class Target(Protocol):
    """A machine that npuc compiles for.

    A subclass must define `name`, `problems`, `lower`, `runner` and `listing`; the defaults of the rest suit a
    machine without parameters, memories, cycles of its own or words to assemble.
    """

    name: str
    summary: str = ""
    memories: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("int8",)
    """Number formats that it computes in, the default first."""
    exports: tuple[str, ...] = ("bin",)
    """Formats of `export`."""
    players: tuple[str, ...] = ()
    """Players for the test programs that it exports, the default first; empty if it exports none."""
    chip_models: tuple[str, ...] = ("own",)
    """Simulators for `runner`: npuc's own model, a fast form of it for accuracy runs (quick), the vendor's, the
    hardware description."""
    inexact: tuple[str, ...] = ()
    """Rewrites that may change a result by more than 1 LSB, used only if --allow names them."""
    flags: tuple[Flag, ...] = ()
    """Compilation options that it has in addition to those of all targets."""
    left_out: tuple[str, ...] = ()
    """Names of shared passes that it does without, because it has the operator that they rewrite."""
    host_layers: tuple[str, ...] = ()
    """Operators of the layers that --precision mixed may leave to the host, for accuracy; empty if it has none."""
    self_tests: tuple[str, ...] = ()
    """Formats of exports that can include samples and the expected results."""
    named_exports: tuple[str, ...] = ()
    """Formats of exports whose files and functions are prefixed with the name of the network.

    The name is `npuc.host.c_text.network_name`'s; several such networks fit into one firmware.
    """
    shared_exports: tuple[str, ...] = ()
    """Exported files that parts of one program have in common."""
    takes_layers: bool = False
    """Whether `layer` may give nodes of its int8 programs another precision."""
    has_hardware: bool = False
    """Whether its machines can be described as hardware."""
    has_integer_network: bool = False
    """Whether its programs compute an integer network that other runtimes can open."""

    def passes(self, options: Options) -> tuple[Pass, ...]:
        """Passes to run after those that all targets share."""
        return ()

    def left_whole(self, op: str, x: TensorType | None, options: Options) -> Problem | None:
        """Why the host runs an ONNX operator whole although it has a canonical form; None if it does not.

        x: the type of its first input, None if unknown.
        """
        return ALTERNATING if op in RECURRENT else None

    def cycles(self, graph: Graph, node: Node, options: Options) -> int | None:
        """Cycles of a node of the float graph alone; None if the target cannot run it, or cannot tell."""
        return None

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        """Everything in the optimised float graph that the target cannot run, all at once."""
        ...

    def lower(self, graph: Graph, samples: Samples, options: Options, hook: Hook | None = None) -> Program:
        """The program of an optimised float graph, with its evidence, not yet sealed.

        hook: called after passes that need the samples.
        """
        ...

    def quantise(self, graph: Graph, samples: Samples, options: Options) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        """The integer network that `lower` writes as a program, with its float graph, and the steps tried."""
        raise UnsupportedOperator("E205", f"{self.name} has no integer network that other runtimes could open")

    def runner(self, program: Program, chip_model: str = "own") -> Runner:
        """The program ready for simulation, from words and images alone."""
        ...

    def trace_runner(self, program: Program, trace: Path) -> Runner | None:
        """The program on its hardware description (rtl); None if the target has none.

        trace: the file to which the first sample's signals are written, cycle by cycle (.vcd).
        """
        return None

    def timeline(self, program: Program) -> Timeline:
        """The activity of engines and the contents of memories over time; by default one layer after the other."""
        return in_turn(program.report["layers"], self.name)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """The instructions in order: number, word, text, source nodes."""
        ...

    def outline(self, program: Program) -> Sequence[Heading]:
        """Headings of the listing in order, outer ones before inner ones: segments, layers, units, and notes.

        Raises ArtefactError (E502) for a damaged manifest.
        """
        return by_nodes(self.listing(program))

    def results(self, program: Program) -> Mapping[str, frozenset[str]]:
        """The tensors that instructions complete, each with the ONNX nodes of the last such instruction."""
        listing = self.listing(program)
        return {row["tensor"]: frozenset(row["nodes"]) for row in listing if row["tensor"] is not None}

    def storage_of(self, program: Program, tensor: str) -> Stored | None:
        """The location of a whole tensor; None if it is unknown, or tiles are stored one by one."""
        return None

    def origin(self, program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
        """The instruction that computed this element of a tensor that the machine computes."""
        return last_writer(self.listing(program), tensor)

    def memory_annotations(self, program: Program, name: str) -> Iterable[MemoryAnnotation]:
        """The meaning of the bytes of a program file, as far as the machine's loads and words tell."""
        return ()

    def raw_listing(self, path: Path) -> list[dict[str, Any]]:
        """The same as `listing` for a file of raw words. Raises ArtefactError (E501) if the target has none."""
        reason = f"'{path}' is no program, and {self.name} has no words that could be told from other bytes"
        raise ArtefactError("E501", reason, remedy="give the folder that npuc compile wrote")

    def layout(self) -> Mapping[str, list[dict[str, str | int]]]:
        """The fields of every instruction word or register."""
        return {}

    def assemble(self, program: Program, listing: Path) -> Program:
        """The program with its words replaced by those of a listing file. Raises ArtefactError (E504)."""
        raise ArtefactError("E504", f"'{listing}': {self.name} has no instruction words to assemble")

    def export(self, program: Program, form: str, player: str | None = None) -> dict[str, bytes]:
        """The memory images in a file format, and a map of their locations, by file name.

        player: the player for a test program, one of `players`; None: the default, or the format is no test
        program.
        """
        return dict(program.files)

    def self_test(self, program: Program, form: str, inputs: Mapping[str, Array]) -> dict[str, bytes]:
        """Files in addition to those of `export`, or in place of them, for inputs (samples, *shape).

        Expected results come from the chip model, which reads the artefact alone. Raises ArtefactError (E506) if
        the chip model is no reference for hardware.
        """
        return {}

    def hardware(
        self,
        machine: str | None,
        program: Program | None,
        samples: Samples | None,
        resources: Sequence[str],
        *,
        system: bool = False,
    ) -> dict[str, bytes]:
        """Files by name: the hardware description of a machine, or of a program's machine, and a test bench.

        With a program also the steps of running it on the first sample. resources: chips for which resource usage
        is estimated. system: the program is in the hardware's memories from the start. Raises ArtefactError (E507)
        if a tool is missing.
        """
        raise ArtefactError("E507", f"{self.name} has no hardware description")

    def machine_values(self, name: str | None) -> dict[str, Any]:
        """The parameters of a shipped machine or of a TOML file; None: the default. Raises DoesNotFit (E305)."""
        if name not in (None, *self.machines()):
            raise DoesNotFit("E305", f"{self.name} has no machine '{name}'", limit=", ".join(self.machines()))
        return {"name": "default"}

    def machines(self) -> list[str]:
        """The machines that ship with npuc."""
        return ["default"]

    def operators(self) -> list[dict[str, str]]:
        """The supported-operators table; the keys of a row are op, runs_as and constraints."""
        return []


Shapes = Mapping[str, tuple[int, ...]]
"""Extents of inputs, by name."""


@frozen
class Request:
    """A model to compile for a target, and everything that the program depends on."""

    model: Path
    target: Target
    options: Options
    calibration: Sequence[Path] = ()
    """Files of samples; without them, or with `synthetic` in their place, the samples are synthetic."""
    shapes: Shapes = field(default_factory=dict[str, tuple[int, ...]])
    """Extents in place of the model's, of inputs that have dynamic ones."""
    hook: Hook | None = None
    """Called after every pass."""
    synthetic: bool = True
    """Whether ranges may come from synthetic samples although nobody asked for them."""


def quickest(target: Target) -> str:
    """The chip model for many samples, when the last bit of a floating-point result does not matter."""
    return "quick" if "quick" in target.chip_models else "own"
