"""What a target is: a name, its passes, what it refuses, and how it lowers and simulates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from npuc.annotation import MemoryAnnotation
from npuc.errors import ArtefactError, DoesNotFit, Problem
from npuc.flag import Flag
from npuc.ir import Array, Graph, Node
from npuc.pipeline import Hook, Pass
from npuc.program import Program
from npuc.storage.data import Samples
from npuc.storage.mapped import trim
from npuc.timeline import Timeline, in_turn

if TYPE_CHECKING:
    from npuc.outline import Heading
    from npuc.quantize.calibration.histograms import HistogramSource
    from npuc.quantize.improvement.search import Network, Trial

Observer = Callable[[str, Array], None]
"""Called with the name of an int8 tensor and its values (samples, *shape).

What was not computed has a value that no int8 has.
"""


@dataclass(frozen=True)
class Options:
    """What the user asked of a compilation, beside the model and its data."""

    machine: str | None = None
    precision: str = "int8"
    strict: bool = False
    method: str | None = None
    """The calibration method; None: the level's."""
    allow: tuple[str, ...] = ()
    """Inexact rewrites that may be used, by the names that the target gives them."""
    level: str = "1"
    """What is done for accuracy, a level of quantize.improvement."""
    notify: Callable[[Sequence[Trial]], None] | None = None
    """Called with what was tried for accuracy."""
    mixed: bool = False
    """A few layers may run on the host for accuracy."""
    histograms: HistogramSource | None = None
    """What finds the histograms of tensors; None: quantize.calibration.histograms."""
    scales: str | None = None
    """What scales of activations may be, one of machine_files.DEMANDS; None: what the machine asks for."""
    fallback: str = "host"
    """Where what the target refuses goes: "host", or "refuse"."""
    deny: tuple[str, ...] = ()
    """ONNX operators and nodes that the host shall run."""
    max_partitions: int | None = None
    """How many parts of the NPU a program may have at most."""
    bind: tuple[tuple[str, float], ...] = ()
    """Scalar inputs that are constants, and their values."""
    stage: Callable[[str], None] | None = None
    """Called with what begins, where it may take long."""
    proof: str = "one"
    """What the program is run on before it is given out: "one" sample, "all" of calibration, or "off"."""
    prefix: str | None = None
    """What the names of exported files and functions begin with; None: npuc_ and the model's name."""

    flags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of the target's own flags, by name; absent ones have their usual value."""
    isa: InitVar[str | None] = None
    objective: InitVar[str | None] = None
    weights: InitVar[str | None] = None
    """What scripts of npuc 0.1 give as fields: entries of `flags`."""

    def __post_init__(self, isa: str | None, objective: str | None, weights: str | None) -> None:
        old = {"isa": isa, "objective": objective, "weights": weights}
        given = {name: value for name, value in old.items() if value is not None}
        if given:
            object.__setattr__(self, "flags", {**self.flags, **given})

    def flag(self, flag: Flag) -> str:
        """The value of a flag that a target declares."""
        return self.flags.get(flag.name, flag.values[0])

    def begin(self, what: str) -> None:
        """Says that a part of the work begins that may take long; memory that the last one freed goes back."""
        trim()
        if self.stage is not None:
            self.stage(what)


def usual_options(target: Target) -> Options:
    """What a compilation for a target is asked where nobody asks for anything: its usual precision."""
    return Options(precision=target.precisions[0])


FLOATING = ("fp16", "fp32")
"""Precisions whose programs have no integer reference, and no scales to calibrate."""


@dataclass(frozen=True)
class Origin:
    """The instruction that computed an element of a tensor, and the tile of it."""

    instruction: int
    text: str
    tile: tuple[int, ...] | None
    """Row and column of the tile among the instruction's tiles, where it has any."""


def last_writer(listing: Sequence[Mapping[str, Any]], tensor: str) -> Origin | None:
    """The last entry of a listing that computes a tensor: its origin where instructions have no tiles."""
    for entry in reversed(listing):
        if entry["tensor"] == tensor:
            return Origin(entry["index"], entry["text"], None)
    return None


class Runner(Protocol):
    """A program that simulates batch after batch."""

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A runner on a chip model that counts cycles."""

    @property
    def cycles(self) -> int | None:
        """What the last sample took; None before the first."""
        ...


class Stepper(Runner, Protocol):
    """A program on a simulator that counts cycles."""

    def report(self) -> dict[str, Any]:
        """Of the last sample: `cycles`, and `layers` with what each of them took."""
        ...


@runtime_checkable
class Mixing(Protocol):
    """A target of whose programs the host may compute a few layers, for accuracy."""

    host_layers: tuple[str, ...]
    """Operators of such layers."""


@runtime_checkable
class Quantising(Protocol):
    """A target whose programs compute an integer network that other runtimes can open."""

    def quantised(self, graph: Graph, samples: Samples, options: Options) -> tuple[Network, tuple[Trial, ...]]:
        """The integer network that `lower` writes as a program, with its float graph, and what was tried."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A target that tells by shapes alone what does not fit its memories."""

    def foresee(self, graph: Graph, options: Options) -> None:
        """Raises DoesNotFit as `lower` would, but before samples are run; never for what `lower` takes."""
        ...


@runtime_checkable
class Indexing(Protocol):
    """A target that knows what its instructions end without listing them."""

    def results(self, program: Program) -> Mapping[str, frozenset[str]]:
        """The tensors that instructions end, each with the ONNX nodes of the last one that does."""
        ...


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies while a program runs, and what its bytes mean."""

    where: str
    """For a message: a memory and addresses."""
    bytes: int
    """Of a sample, from the first of the tensor's bytes to the last."""
    unpack: Callable[[Array], Array]
    """From these bytes (bytes,) uint8 to the tensor in its own shape."""


@runtime_checkable
class Storing(Protocol):
    """A target that knows how tensors lie in its memories."""

    def stored(self, program: Program, tensor: str) -> Stored | None:
        """Where a tensor lies as a whole; None where it never does (its tiles are stored one by one)."""
        ...


@runtime_checkable
class Outlining(Protocol):
    """A target that knows what its instructions stand under: segments, layers, units; and notes on them."""

    def outline(self, program: Program) -> Sequence[Heading]:
        """Headings in order, outer ones before inner ones. Raises ArtefactError (E502) for a damaged manifest."""
        ...


@runtime_checkable
class Describing(Protocol):
    """A target whose machines are written as hardware."""

    def hardware(
        self,
        machine: str | None,
        program: Program | None,
        samples: Samples | None,
        resources: Sequence[str],
    ) -> dict[str, bytes]:
        """Files by name: the description of a machine, or of a program's, and a test bench.

        With a program also the steps of running it on the first sample; resources: chips for which an estimate of
        what it takes is made. Raises ArtefactError (E507) where a tool is missing.
        """
        ...


@runtime_checkable
class SelfTesting(Protocol):
    """A target whose exports can bring samples along, and what the program makes of them."""

    self_tests: tuple[str, ...]
    """Formats that can."""

    def self_test(self, program: Program, form: str, inputs: Mapping[str, Array]) -> dict[str, bytes]:
        """Files beside those of `exported`, or in place of them, for inputs (samples, *shape).

        What is expected comes from the chip model, which reads the artefact alone. Raises ArtefactError (E506)
        where that is no standard for hardware.
        """
        ...


@runtime_checkable
class Naming(Protocol):
    """A target some of whose exports begin every file and function with the name of the network.

    `npuc.network_name` has it; several such networks fit into one firmware.
    """

    named_exports: tuple[str, ...]
    """Formats that do."""


class Target(Protocol):
    """A machine npuc compiles for.

    A class that inherits it says `name`, `problems`, `lower`, `runner` and `listing`; the rest has defaults: a
    machine without parameters, memories, cycles of its own and words to assemble.
    """

    name: str
    summary: str = ""
    memories: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("int8",)
    """Number formats it computes in, the usual one first."""
    exports: tuple[str, ...] = ("bin",)
    """Formats of `exported`."""
    players: tuple[str, ...] = ()
    """What can play the test programs that it exports, the usual one first; none where it exports none."""
    chip_models: tuple[str, ...] = ("own",)
    """What `runner` can simulate on: npuc's own model, the same as accuracy needs it (quick), the vendor's, the
    hardware description."""
    inexact: tuple[str, ...] = ()
    """Rewrites that may move a result by more than 1 LSB, and are only used where --allow names them."""
    flags: tuple[Flag, ...] = ()
    """Options of a compilation that it has beside those of all targets."""
    left_out: tuple[str, ...] = ()
    """Passes that all targets share and this one does without, by name: it has the operator that they rewrite."""

    def passes(self, options: Options) -> tuple[Pass, ...]:
        """Run after the passes that all targets share."""
        return ()

    def cycles(self, graph: Graph, node: Node, options: Options) -> int | None:
        """What a node of the float graph would take alone; None where the target cannot run it, or cannot tell."""
        return None

    def problems(self, graph: Graph, options: Options) -> list[Problem]:
        """Everything in the optimised float graph that the target cannot run, all at once."""
        ...

    def lower(self, graph: Graph, samples: Samples, options: Options, hook: Hook | None = None) -> Program:
        """The program of an optimised float graph, with its evidence, not yet sealed.

        hook: told of the passes that need the samples.
        """
        ...

    def runner(self, program: Program, chip_model: str = "own") -> Runner:
        """The program ready to be simulated, from words and images alone."""
        ...

    def stepper(self, program: Program, trace: Path | None) -> Stepper | None:
        """The program on a simulator that counts cycles; None if the target has none.

        trace: the file that the first sample's signals are written to, cycle by cycle (.vcd).
        """
        return None

    def timeline(self, program: Program) -> Timeline:
        """When its engines work, and what its memories hold meanwhile; by default one layer after the other."""
        return in_turn(program.report["layers"], self.name)

    def listing(self, program: Program) -> list[dict[str, Any]]:
        """The instructions in order: number, word, text, source nodes."""
        ...

    def origin(self, program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
        """Which instruction computed this element of a tensor that the machine computes."""
        return last_writer(self.listing(program), tensor)

    def memory_annotations(self, program: Program, name: str) -> Iterable[MemoryAnnotation]:
        """What the bytes of a file of the program are, where the machine's loads and words tell."""
        return ()

    def raw_listing(self, path: Path) -> list[dict[str, Any]]:
        """The same as `listing` for a file of raw words. Raises ArtefactError (E501) where there are none."""
        reason = f"'{path}' is no program, and {self.name} has no words that could be told from other bytes"
        raise ArtefactError("E501", reason, limit="the directory npuc compile wrote")

    def layout(self) -> Mapping[str, list[dict[str, str | int]]]:
        """The fields of every instruction word or register."""
        return {}

    def assembled(self, program: Program, listing: Path) -> Program:
        """The program with the words of a listing file in place of its own. Raises ArtefactError (E504)."""
        raise ArtefactError("E504", f"'{listing}': {self.name} has no instruction words to assemble")

    def exported(self, program: Program, form: str, player: str | None = None) -> dict[str, bytes]:
        """The memory images in a file format, and a map of what goes where, by file name.

        player: what will play a test program, one of `players`; None: the usual one, or the format is none.
        """
        return dict(program.files)

    def machine_values(self, name: str | None) -> dict[str, Any]:
        """The parameters of a shipped machine or of a TOML file; None: the default. Raises DoesNotFit (E305)."""
        if name not in (None, *self.machines()):
            raise DoesNotFit("E305", f"{self.name} has no machine '{name}'", limit=", ".join(self.machines()))
        return {"name": "default"}

    def machines(self) -> list[str]:
        """The machines that ship with npuc."""
        return ["default"]

    def operators(self) -> list[dict[str, str]]:
        """The supported-operators table: operator, how it runs, its constraints."""
        return []


# name -> module and attribute, imported only when the target is used
TARGETS: Mapping[str, tuple[str, str, str]] = {
    "easynpu": ("npuc.targets.easynpu.target", "EASYNPU", "16-PE int8 array, one 128-bit instruction per layer"),
    "nvdla-small": ("npuc.targets.nvdla.target", "SMALL", "NVDLA nv_small: 64 MACs, 128 KiB of CBUF"),
    "nvdla-large": ("npuc.targets.nvdla.target", "LARGE", "NVDLA nv_large: 2048 MACs, 512 KiB, tables"),
    "nvdla-full": ("npuc.targets.nvdla.target", "FULL", "NVDLA nv_full: 2048 MACs, 512 KiB, tables"),
    "bm1684": (
        "npuc.targets.bm1684.target",
        "BM1684",
        "64 NPUs of 16 lanes, fp32, programmed in C through OKKernel; int8 outside its public interface",
    ),
}

FILES: Mapping[bytes, tuple[str, str]] = {b"NVDA": ("npuc.targets.nvdla.loadable.listing", "rows")}
"""Files that tell by their bytes 4 to 8 what they are -> module and attribute that lists them."""
SIGNATURE = slice(4, 8)


def file_listing(path: Path) -> Callable[[Path], list[dict[str, Any]]] | None:
    """What lists a file whose content says what it is; None for any other, and for one that cannot be read."""
    try:
        with path.open("rb") as file:
            found = FILES.get(file.read(SIGNATURE.stop)[SIGNATURE])
    except OSError:
        return None
    if found is None:
        return None
    lister: Callable[[Path], list[dict[str, Any]]] = getattr(import_module(found[0]), found[1])
    return lister


RECORDS = {"ffffffff0000100400000000": ("nvdla-small", "nvdla-large", "nvdla-full")}
"""How a file's first word of 16 bytes ends in hexadecimal -> targets whose register programs begin so."""
RECORD_BYTES = 16


def record_targets(path: Path) -> tuple[str, ...]:
    """The targets for one of which the register records of a file are, binary or in hexadecimal; else none."""
    try:
        with path.open("rb") as file:
            head = file.read(4 * RECORD_BYTES)
    except OSError:
        return ()
    words = head[:RECORD_BYTES][::-1].hex(), head.split(b"\n")[0].strip().decode("ascii", "replace").lower()
    return next((names for end, names in RECORDS.items() if any(word.endswith(end) for word in words)), ())


GROUP = "npuc.targets"
"""The group of entry points by which other packages bring targets along: name = "module:attribute"."""


def quickest(target: Target) -> str:
    """The chip model for many samples, where the last bit of a floating-point result does not matter."""
    return "quick" if "quick" in target.chip_models else "own"


def target(name: str) -> Target:
    """The target of this name, npuc's own or of an installed package.

    Raises KeyError for an unknown one, ArtefactError (E507) for a package whose target cannot be imported.
    """
    if name not in TARGETS:
        return _installed(name)
    module, attribute, _ = TARGETS[name]
    found: Target = getattr(import_module(module), attribute)
    return found


def names() -> Sequence[str]:
    """The targets' names: npuc's own, then those of installed packages."""
    from importlib.metadata import entry_points

    others = {each.name for each in entry_points(group=GROUP)}
    return (*TARGETS, *sorted(others - TARGETS.keys()))


def _installed(name: str) -> Target:
    from importlib.metadata import entry_points

    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise KeyError(name)
    try:
        loaded: Target = found[0].load()
    except (ImportError, AttributeError) as error:
        reason = f"the target '{name}' cannot be imported from {found[0].value}: {error}"
        raise ArtefactError("E507", reason, remedy="repair or remove the package that brings it") from None
    return loaded
