"""Cores with a mistake: expressions of the hardware description with another in their place, all in one build.

A register that the core does not have otherwise selects the mistake that is in effect; with 0 there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from amaranth.hdl import Mux, Signal, Value

from npuc.targets.easynpu import rtl
from npuc.targets.easynpu.machine.parameters import Machine

PACKAGE = rtl.__name__
SELECTED = Signal(8, name="selected_mutant")
REGISTER = 127
"""Of the host's port, for SELECTED."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: in a module of the hardware, an expression that stands there once, and what takes its place."""

    name: str
    module: str
    right: str
    wrong: str
    shown_by: str = "three rows"
    """A core of the rig, or a trial of the AXI adapter."""


MUTANTS = (
    Mutant("a right shift does not round", "quantiser", "(shifted >> 1) + shifted[0]", "shifted >> 1"),
    Mutant("values out of bounds wrap", "quantiser",
        "Mux(high.all() | ~high.any(), value[:BYTE], Cat((~sign).replicate(BYTE - 1), sign))", "value[:BYTE]"),
    Mutant("the sign of a shift is ignored", "quantiser", "Mux(left, 0, -self.scale)", "Mux(left, 0, self.scale)"),
    Mutant("left shifts do nothing", "quantiser", "near << reach", "near"),
    Mutant("pooling keeps the smallest", "pe", "product > addend", "product < addend"),
    Mutant("lanes are mirrored", "array", "ifmap.word_select(lane, BYTE)",
        "ifmap.word_select(LANES - 1 - lane, BYTE)"),
    Mutant("a channel goes to its own PE alone", "array", "Mux(selected.broadcast, one.replicate(LANES), entry)",
        "entry"),
    Mutant("PEs beyond the last channel take part", "sequencer",
        "Mux(group == last >> GROUP, (2 << last[:GROUP]) - 1, (1 << LANES) - 1)", "(1 << LANES) - 1"),
    Mutant("the halo begins a row too late", "loader", "(y >= Hi)", "(y > Hi)"),
    Mutant("the halo on the left is left out", "loader", "along + column - was.Pw", "along + column"),
    Mutant("pooling pads with zeros", "loader", "was.lowest", "0"),
    Mutant("the set of pads does not change", "loader", "~self.side", "self.side"),
    Mutant("rows of the pads overlap", "loader", "first_entry + now.xi", "first_entry + now.xi - 1"),
    Mutant("psums are not cleared", "sequencer", "Mux(first, now.start.as_value(), Addend.PSUM)",
        "Addend.PSUM.value"),
    Mutant("pads are read in the row of a column", "sequencer", "(y * xi)[:bits]", "(x * xi)[:bits]"),
    Mutant("taps are taken in another order", "sequencer", "(y + hk)[:bits]", "(y + wk)[:bits]"),
    Mutant("the hazard of a single psum is forgotten", "sequencer",
        "alone & single & (not self.machine.psum_write_first)", "0"),
    Mutant("the second operand is read at another pixel", "sequencer", 'self._address(m, "operand", place, y, x)',
        'self._address(m, "operand", place, x, y)'),
    Mutant("channel-wise weights stay with the first group", "weight_stream", "first + skipped", "first"),
    Mutant("the pointer into the weight stream forgets parameters", "controller",
        "self.stream + self.parameter_count + weights", "self.stream + weights"),
    Mutant("the Fmap DTCM is always filled from the same end", "controller", "~self.low", "self.low"),
    Mutant("an input at a segment's start takes the one before", "pads", "(x >= bound)", "(x > bound)"),
    Mutant("bytes of a bias are read backwards", "pads", "Cat(*planes)", "Cat(*planes[3::-1], planes[4])"),
    Mutant("an entry is overwritten in the cycle of its last read", "core", "loader.entry < sequencer.lowest",
        "loader.entry <= sequencer.lowest", shown_by="one set of pads"),
    Mutant("entries are free with the first ozi", "sequencer", "self.last_tap & (self.ozi == self.last_ozi)",
        "self.last_tap", shown_by="one set of pads"),
    Mutant("entries are free with the first channel", "sequencer",
        "Mux(self.kzi == self.running.last_channel, read, 0)", "read", shown_by="one set of pads"),
    Mutant("fused passes keep the loader waiting", "sequencer", "self.busy & self.own", "self.busy",
        shown_by="one set of pads"),
    Mutant("no entry is free before the last tap", "sequencer",
        "Mux(follows, self._pad_entry(self.oyi[0], self.oxi[0]), first)",
        "Mux(follows, self._pad_entry(self.oyi[0], self.oxi[0]), 0)", shown_by="one set of pads"),
    Mutant("a fused pass begins a cycle too soon", "sequencer", "(self.psum + 1) << self.bubble",
        "(self.psum + 2) << self.bubble"),
    Mutant("psums of output groups overlap", "sequencer", "Mux(self.end_pass, 0, self.psum + 1)",
        "Mux(self.end_ozi, 0, self.psum + 1)"),
    Mutant("a copy lies where the result lies", "sequencer", 'self._address(m, "copy", copy, y, x)',
        'self._address(m, "copy", target, y, x)'),
    Mutant("an edge tile is as wide as the others", "loader", "Mux(most < left, most, left)", "most"),
    Mutant("an edge tile of a row or column is left out", "loader", "left > most", "left > most + 1"),
    Mutant("a single column is not known in a step's first cycle", "loader",
        "Mux(fresh, one_column, in_last_column)", "in_last_column"),
    Mutant("two columns are not known in a step's first cycle", "loader",
        "Mux(fresh, two_columns, column + 1 == last_column)", "column + 1 == last_column"),
    Mutant("two rows are not known in a step's first cycle", "loader", "Mux(fresh, two_rows, row + 1 == last_row)",
        "row + 1 == last_row"),
    Mutant("the last tap is the one behind it", "sequencer", "Mux(carries, after, last)", "last"),
    Mutant("a batch of several cycles takes one more", "sequencer", "later + 1 == cycles", "later == cycles"),
    Mutant("slopes are those of the other sign", "pe", "fed < 0", "fed > 0"),
    Mutant("a PE that is off gives its result", "pe", "~leaves.on", "0"),
    Mutant("ReLU lets negative results pass", "pe", "leaves.relu & (quantiser.result < 0)", "0"),
    Mutant("operands stay with the first row of PEs", "array", "(self.operand_row == row)",
        "(self.operand_row == 0)"),
    Mutant("a result passes others that wait", "memories", "self.put & self.empty & self.take",
        "self.put & self.take"),
    Mutant("the estimate of a quotient is not corrected", "rearranger", "over >= divisor", "0"),
    Mutant("parts of a dimension are stacked where they are inserted", "rearranger", "Mux(insert, old, part)",
        "Mux(insert, part, old)"),
    Mutant("a part is always a block of indices", "rearranger", "Mux(minor, remainder, quotient)", "quotient"),
    Mutant("lanes over the end of a word stay in it", "rearranger", "Mux(second, self.chain.target.group, 0)",
        "0"),
    Mutant("lanes behind the last channel keep what was there", "rearranger", "lane >= unused", "0"),
    Mutant("every group begins a run", "rearranger", "Mux(left <= rest, 0, within + length)", "0"),
    Mutant("tiles are rearranged as if they were rows", "rearranger", "oxi + 1 == tile.columns.extent",
        "column == chain.last_column"),
    Mutant("the next split takes the extent before", "rearranger", "Mux(onto == dimension, extents.quotient, old)",
        "old"),
)  # fmt: skip


def chosen(number: int, right: Value | int, wrong: Value | int) -> Value:
    """The right value, or the wrong one of this mutant."""
    return Mux(number == SELECTED, wrong, right)


class Mutated(SourceLoader):
    """Loads a module of the hardware with the mistakes in it."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str) -> bytes:
        return self.source.encode()


class Finder(MetaPathFinder):
    """Finds the hardware's modules as sources that have been changed."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self.sources else None
        if spec is not None and spec.origin is not None:
            spec.loader = Mutated(spec.origin, self.sources[fullname])
        return spec


def source(module: str) -> str:
    """A module of the hardware as it is."""
    return (Path(next(iter(rtl.__path__))) / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def mutated(module: str) -> str:
    """Its source with every mutant of it as a choice."""
    text = source(module)
    for number, mutant in enumerate(MUTANTS, start=1):
        if mutant.module == module:
            text = text.replace(mutant.right, f"chosen({number}, {mutant.right}, {mutant.wrong})")
    names = f"from {__name__} import REGISTER, SELECTED, chosen\n"
    future = "from __future__ import annotations\n"
    if module == "core":
        begin = "        m.d.sync += register.eq(0)\n"
        write = "write & (index == REGISTER)"
        text = text.replace(
            begin, f"{begin}        m.d.sync += SELECTED.eq(Mux({write}, self.write_data, SELECTED))\n"
        )
    return text.replace(future, future + names)


@contextmanager
def imported(sources: Mapping[str, str]) -> Generator[None]:
    """Imports of the hardware's modules give these sources."""
    finder = Finder({f"{PACKAGE}.{module}": text for module, text in sources.items()})
    kept = _forgotten()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forgotten()
        for name, module in kept.items():
            sys.modules[name] = module
            package, _, last = name.rpartition(".")
            setattr(kept.get(package, rtl), last, module)


def _forgotten() -> dict[str, ModuleType]:
    """The hardware's modules, which will be imported anew."""
    found = {name: module for name, module in sys.modules.items() if name.startswith(f"{PACKAGE}.")}
    for name in found:
        del sys.modules[name]
        package, _, last = name.rpartition(".")
        delattr(found.get(package, rtl), last)
    return found


def verilog(machine: Machine, *, observed: bool) -> str:
    """The core with all mutants."""
    modules = {mutant.module for mutant in MUTANTS} | {"core"}
    with imported({module: mutated(module) for module in modules}):
        array, pe = (import_module(f"{PACKAGE}.{name}") for name in ("array", "pe"))

        def inside(machine: Machine, _name: str) -> tuple[Any, Any]:  # a module of its own has no such register
            one = pe.Pe(machine)
            return one, one

        setattr(array, "instance", inside)  # noqa: B010
        return str(import_module(f"{PACKAGE}.core").verilog(machine, observed=observed))
