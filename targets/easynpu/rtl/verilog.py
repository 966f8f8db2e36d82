"""SystemVerilog that can be read: a module per component, with its names, its conditions, and what it is.

Amaranth's own back end writes a net per operation and a block per register. Here an expression stays one, the
registers of a module are in one block, and a comment names the component and its place in the document. Every
value is written with exactly its width: operands are cast to the width of their result.
"""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# (Amaranth's syntax tree has no public interface)
from __future__ import annotations

import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from amaranth.hdl import Const, Elaboratable, Fragment, Signal, Value
from amaranth.hdl._ast import Assign, Concat, Operator, Part, SignalDict, Slice, Switch, SwitchValue
from amaranth.hdl._ir import Instance, PortDirection
from amaranth.hdl._mem import MemoryInstance
from amaranth.lib import wiring

RESERVED = frozenset(
    """
    always and assign automatic begin bit buf byte case cell const default design do edge else end enum
    event final for force fork function if import initial inout input instance int integer join local
    logic macromodule module nand new nor not null or output packed parameter pulldown pull_up real ref
    reg release repeat return rand scalared signed small static strong string struct super supply table
    task this time tran type typedef union unsigned use var vectored virtual void wait wand weak while
    wire with within wor xor
    """.split()  # noqa: SIM905
)
PLAIN = {"+": "+", "*": "*", "&": "&", "|": "|", "^": "^", "-": "-"}
COMPARED = frozenset(("==", "!=", "<", "<=", ">", ">="))
REDUCED = {"r|": "|", "r&": "&", "r^": "^", "b": "|"}
WIDTH = 110
CONTENTS = "contents"
"""The attribute of a memory that names the file of its words at the start."""
WAIVERS = {
    "DECLFILENAME": "a core is one file",
    "PROCASSINIT": "registers begin as after a reset, also where there is none",
    "UNUSEDSIGNAL": "a block gets all fields of a bundle",
    "CMPCONST": "a comparison with each of 16 lanes, the last one included",
    "PINCONNECTEMPTY": "a PE shows its psum to test benches",
}
"""Verilator's warnings that are meant: all others are mistakes (tests/easynpu_rtl/test_synthesis.py)."""
HEADER = "".join(f"/* verilator lint_off {name} */  // {reason}\n" for name, reason in WAIVERS.items())


def modules(name: str, component: Elaboratable) -> str:
    """A component and what it contains, the top module called `name`, the others by their path from it."""
    signature: Any = getattr(component, "signature", None)
    ports = {
        "__".join(map(str, path)): (
            Value.cast(value), PortDirection.Input if member.flow is wiring.In else PortDirection.Output
        )
        for path, member, value in signature.flatten(component)
    }  # fmt: skip
    design: Any = Fragment.get(component, None).prepare(ports=ports, hierarchy=(name,))
    design.drivers, design.wanted = SignalDict(), _shared_names(design)
    _drive(design.fragment, design.drivers)
    return "\n".join(_Module(design, fragment, path).text() for fragment, path in _walk(design.fragment, name))


def _shared_names(design: Any) -> Any:
    """The names of signals that one statement makes together, where Amaranth finds only the first or another's."""
    lines: dict[tuple[str, int], list[Any]] = {}
    for signal in design.signal_lca:
        lines.setdefault(signal.src_loc, []).append(signal)
    found = SignalDict()
    for (file, line), signals in lines.items():
        targets = re.match(r"\s*([\w.]+(?:, [\w.]+)+) = (?!_)", linecache.getline(file, line))
        names = [each.split(".")[-1] for each in targets[1].split(", ")] if targets else []
        if names and len(signals) % len(names) == 0:
            for at, signal in enumerate(sorted(signals, key=lambda each: each.duid)):
                found[signal] = names[at % len(names)]
    return found


def _walk(fragment: Any, path: str) -> Iterator[tuple[Any, str]]:
    yield fragment, path
    for number, (inner, name, _) in enumerate(fragment.subfragments):
        if not isinstance(inner, (Instance, MemoryInstance)):
            yield from _walk(inner, f"{path}_{name or number}")


def _drive(fragment: Any, drivers: Any) -> None:
    """Maps signals to the fragments that drive them."""
    if isinstance(fragment, Instance):
        driven = [
            signal for value, kind in fragment.ports.values() if kind == "o" for signal in value._lhs_signals()
        ]
    elif isinstance(fragment, MemoryInstance):
        driven = [signal for port in fragment._read_ports for signal in port._data._lhs_signals()]
    else:
        driven = [each for statements in fragment.statements.values() for each in statements._lhs_signals()]
    for signal in driven:
        drivers[signal] = fragment
    for inner, _, _ in fragment.subfragments:
        _drive(inner, drivers)


class _Module:
    """A fragment as a module."""

    def __init__(self, design: Any, fragment: Any, name: str) -> None:
        self.fragment, self.name, self.drivers, self.design = fragment, name, design.drivers, design
        self.names: Any = SignalDict()
        self.taken = set[str]()
        ports = {id(signal): port for port, signal, _ in design.ports} if fragment is design.fragment else {}
        info = design.fragments[fragment]
        self.taken.update(ports.values())
        of_memories = self._of_memories()
        for signal in info.used_signals:
            wanted = of_memories.get(signal) or design.wanted.get(signal)
            wanted = wanted or info.signal_names.get(signal, "unnamed")
            self.names[signal] = ports.get(id(signal)) or self._new(wanted)
        self.extra: list[str] = []

    def _of_memories(self) -> Any:
        """Names for the signals at the ports of memories, which Amaranth names alike."""
        found = SignalDict()
        for memory, name, _ in self.fragment.subfragments:
            if isinstance(memory, MemoryInstance):
                for kind, ports in (("read", memory._read_ports), ("write", memory._write_ports)):
                    for port in ports:
                        for part, signal in (("address", port._addr), ("data", port._data), ("enable", port._en)):
                            if isinstance(signal, Signal) and re.match(
                                r"\$?signature__|read__|write__", signal.name
                            ):
                                found[signal] = f"{name}_{kind}_{part}"
        return found

    def _new(self, wanted: str) -> str:
        name = re.sub(r"\W+", "_", wanted).strip("_")
        name = f"{name}_" if name in RESERVED or not name[:1].isalpha() else name
        found, count = name, 1
        while found in self.taken:
            count += 1
            found = f"{name}_{count}"
        self.taken.add(found)
        return found

    def text(self) -> str:
        """The module."""
        body = [*self._children(), *self._combinational(), *self._registers()]
        ports, nets = self._signals()
        head = [f"// {line}" for line in _description(self.fragment)]
        listed = ",\n".join(f"  {port}" for port in ports)
        lines = [*head, f"module {self.name} (\n{listed}\n);", *nets, *self.extra, *body, "endmodule", ""]
        return "\n".join(lines)

    def _inside(self, driver: Any) -> bool:
        """Whether a driver is this fragment or in it."""
        while driver is not None and driver is not self.fragment:
            driver = self.design.fragments[driver].parent
        return driver is not None

    def _signals(self) -> tuple[list[str], list[str]]:
        """Declarations of ports and nets; those without a driver have their initial value."""
        info, top = self.design.fragments[self.fragment], self.fragment is self.design.fragment
        directions = {id(signal): direction for _, signal, direction in self.design.ports}
        ports, nets = list[str](), list[str]()
        for signal, name in self.names.items():
            if not len(signal):
                continue
            kept = self.drivers.get(signal)
            above = self.design.fragments[self.design.signal_lca[signal]].depth < info.depth
            if (top and id(signal) in directions) or above:
                inside = directions[id(signal)] != PortDirection.Input if top else self._inside(kept)
                ports.append(
                    f"{'output' if inside else 'input '} logic {_range(len(signal))}{name}{self._initial(signal)}"
                )
            else:
                nets.append(f"  logic {_range(len(signal))}{name}{self._initial(signal)};")
            if kept is None and not (top and directions.get(id(signal)) == PortDirection.Input) and not above:
                self.extra.append(f"  assign {name} = {_constant(signal.init, len(signal))};")
        return sorted(ports, key=lambda port: (port[:6], port.split()[-1] not in ("clk", "rst"))), nets

    def _initial(self, signal: Any) -> str:
        registers = self.fragment.statements.get("sync")
        held = registers is not None and signal in registers._lhs_signals()
        return f" = {_constant(signal.init, len(signal))}" if held else ""

    # Expressions

    def value(self, value: Any) -> str:
        """A value as an expression of exactly its width; its bits, whatever its sign."""
        match value:
            case Const():
                return _constant(value.value, len(value))
            case Signal():  # one that only a memory uses, and nothing drives, is its initial value
                return self.names[value] if value in self.names else _constant(value.init, len(value))
            case Slice():
                return self._slice(value)
            case Concat():
                parts = [self.value(part) for part in reversed(value.parts) if len(part)]
                same = len(set(parts)) == 1 and len(parts) > 1
                return f"{{{len(parts)}{{{parts[0]}}}}}" if same else f"{{{', '.join(parts)}}}"
            case Part():
                return _cast(len(value), f"{self.value(value.value)} >> {self._scaled_offset(value)}")
            case SwitchValue():
                return self._choice(value, len(value))
            case Operator():
                return self._operation(value)
            case _:
                raise NotImplementedError(type(value).__name__)

    def wide(self, value: Any, width: int) -> str:
        """A value extended, as its sign demands, or cut."""
        if not len(value):
            return _constant(0, width)
        if isinstance(value, Const):
            return _constant(value.value, width)
        if len(value) == width:
            return self.value(value)
        if isinstance(value, SwitchValue) and len(value) < width:
            return self._choice(value, width)
        signed = value.shape().signed and len(value) < width
        return _cast(width, f"$signed({self.value(value)})" if signed else self.value(value))

    def _scaled_offset(self, part: Any) -> str:
        shift = (part.stride - 1).bit_length()
        assert part.stride == 1 << shift
        return f"{{{self.value(part.offset)}, {_constant(0, shift)}}}" if shift else f"({self.value(part.offset)})"

    def _slice(self, value: Any) -> str:
        inner, low, high = value.value, value.start, value.stop
        while isinstance(inner, Slice):
            low, high, inner = low + inner.start, high + inner.start, inner.value
        if isinstance(inner, Operator) and inner.operator in ("u", "s"):
            return self._slice(Slice(inner.operands[0], low, high))
        if (low, high) == (0, len(inner)):
            return self.value(inner)
        if isinstance(inner, Signal):
            return f"{self.names[inner]}{_bits(low, high)}"
        return _cast(high - low, f"{self.value(inner)} >> {low}" if low else self.value(inner))

    def _operation(self, value: Any) -> str:
        operator, operands, width = value.operator, value.operands, len(value)
        if operator in ("u", "s"):
            return self.value(operands[0])
        if operator in REDUCED:
            inner = self.value(operands[0])
            return _unary(REDUCED[operator], inner) if len(operands[0]) > 1 else inner
        if len(operands) == 1:
            return _unary(operator, self.wide(operands[0], width))
        first, second = operands
        if operator in COMPARED:
            shared = [first.shape(), second.shape()]
            signed = any(shape.signed for shape in shared)
            bits = max(shape.width + (signed and not shape.signed) for shape in shared)
            left, right = (self.wide(each, max(bits, 1)) for each in operands)
            return f"($signed({left}) {operator} $signed({right}))" if signed else f"({left} {operator} {right})"
        if operator in ("<<", ">>"):
            left = self.wide(first, max(width, len(first)))
            if operator == ">>" and first.shape().signed:
                return _cast(width, f"$signed({left}) >>> {self.value(second)}")
            shifted = f"({left} {operator} {self.value(second)})"
            return shifted if len(first) <= width else _cast(width, shifted)
        left, right = (
            _cast(width, self.wide(each, width)) if isinstance(each, SwitchValue) else self.wide(each, width)
            for each in operands
        )
        if operator == "*" and value.shape().signed:
            return f"($signed({left}) * $signed({right}))"
        return f"({left} {PLAIN[operator]} {right})"

    def _choice(self, value: Any, width: int) -> str:
        """A choice: of two by ?:, of more in a block of its own."""
        test, cases = value.test, value.cases
        if not len(test):
            return self.wide(cases[0][1], width)
        if len(cases) == 2 and cases[1][0] is None and cases[0][0] == ("0",):
            return f"({self.value(test)} ? {self.wide(cases[1][1], width)} : {self.wide(cases[0][1], width)})"
        name = self._new("choice")
        lines = [f"{name} = {self.wide(each, width)};" for _, each in cases]
        self.extra += [f"  logic {_range(width)}{name};", "  always_comb begin"]
        self.extra += _indent(
            self._cases(
                test,
                [(patterns, [line]) for (patterns, _), line in zip(cases, lines, strict=True)],
                f"{name} = {_constant(0, width)};",
            ),
            2,
        )
        self.extra.append("  end")
        return name

    def _cases(self, test: Any, cases: Sequence[tuple[Any, list[str]]], otherwise: str = "") -> list[str]:
        """A case statement; the first pattern that fits is chosen."""
        loose = any("-" in pattern for patterns, _ in cases for pattern in patterns or ())
        lines = [f"{'casez' if loose else 'case'} ({self.value(test)})"]
        done = False
        for patterns, body in cases:
            if done or patterns == ():
                continue
            label = "default" if patterns is None else ", ".join(_pattern(each) for each in patterns)
            done = patterns is None
            lines += (
                [f"  {label}: {body[0]}"] if len(body) == 1 else [f"  {label}: begin", *_indent(body, 2), "  end"]
            )
        return [*lines, *([] if done else [f"  default: {otherwise or ';'}"]), "endcase"]

    # Statements

    def _statements(self, statements: Iterable[Any], operator: str, only: Any = None) -> list[str]:
        """Statements, or those that assign one signal."""
        lines = list[str]()
        for each in statements:
            if only is not None and only not in each._lhs_signals():
                continue
            if isinstance(each, Assign):
                lines += self._assign(each.lhs, each.rhs, operator, only)
            elif isinstance(each, Switch):
                lines += self._switch(each, lambda inner: self._statements(inner, operator, only))
        return lines

    def _switch(self, switch: Any, of: Callable[[Any], list[str]]) -> list[str]:
        cases = [(patterns, of(statements)) for patterns, statements, _ in switch.cases]
        tests = switch.test.parts if isinstance(switch.test, Concat) else (switch.test,)
        count = len(tests)
        conditions = [None if p is None else p[0] if p else "" for p, _ in cases]
        ladder = [None if at >= count else ("1" + "-" * at).rjust(count, "-") for at in range(len(cases))]
        if all(len(test) == 1 for test in tests) and conditions == ladder:
            lines, word = list[str](), "if"
            while cases and not cases[-1][1]:
                cases.pop()
            for (patterns, body), test in zip(cases, (*tests, None), strict=False):
                condition = f"{word} ({self.value(test)})" if patterns is not None else "else"
                lines += [f"{'end ' if lines else ''}{condition} begin", *_indent(body, 1)]
                word = "else if"
            return [*lines, "end"] if lines else []
        if not any(body for _, body in cases):
            return []
        return self._cases(switch.test, [(patterns, body or [";"]) for patterns, body in cases])

    def _assign(self, lhs: Any, rhs: Any, operator: str, only: Any) -> list[str]:
        if not len(lhs) or (only is not None and only not in lhs._lhs_signals()):
            return []
        if isinstance(lhs, Operator):
            return self._assign(lhs.operands[0], rhs, operator, only)
        if isinstance(lhs, SwitchValue):
            cases = [(patterns, self._assign(each, rhs, operator, only) or [";"]) for patterns, each in lhs.cases]
            return self._cases(lhs.test, cases)
        if isinstance(lhs, Concat):
            lines, at = list[str](), 0
            for part in lhs.parts:
                lines += self._assign(part, Slice(rhs, at, at + len(part)), operator, only)
                at += len(part)
            return lines
        return [f"{self._target(lhs)} {operator} {self.wide(rhs, len(lhs))};"]

    def _target(self, lhs: Any) -> str:
        low, high = 0, len(lhs)
        while isinstance(lhs, (Slice, Operator)):
            if isinstance(lhs, Slice):
                low, high, lhs = low + lhs.start, high + lhs.start, lhs.value
            else:
                lhs = lhs.operands[0]
        assert isinstance(lhs, Signal), type(lhs).__name__
        return self.names[lhs] + ("" if (low, high) == (0, len(lhs)) else _bits(low, high))

    def _combinational(self) -> list[str]:
        """An assignment for every signal, or part of one, that is assigned once; a block for the others."""
        statements, lines = list(self.fragment.statements.get("comb", ())), list[str]()
        for signal in sorted(
            (each for each in self.names if self.drivers.get(each) is self.fragment and len(each)),
            key=lambda each: self.names[each],
        ):
            own = [each for each in statements if signal in each._lhs_signals()]
            if not own:
                continue
            targets = [self._target(each.lhs) for each in own if isinstance(each, Assign) and _simple(each.lhs)]
            covered = sum(len(each.lhs) for each in own if isinstance(each, Assign))
            if len(targets) == len(own) == len(set(targets)) and covered == len(signal):
                lines += [f"  assign {self._assign(each.lhs, each.rhs, '=', None)[0]}" for each in own]
                continue
            assert not any(signal in _read(each, signal) for each in own), (
                f"{self.name}: {self.names[signal]} depends on itself"
            )
            begin = f"{self.names[signal]} = {_constant(signal.init, len(signal))};"
            lines += [
                "  always_comb begin",
                f"    {begin}",
                *_indent(self._statements(own, "=", signal), 2),
                "  end",
            ]
        return lines

    def _registers(self) -> list[str]:
        """The registers, in one block; the last assignment that applies counts."""
        statements = self.fragment.statements.get("sync")
        if not statements:
            return []
        domain = self.fragment.domains["sync"]
        lines = _indent(self._statements(statements, "<="), 2)
        reset = [
            f"      {self.names[signal]} <= {_constant(signal.init, len(signal))};"
            for signal in sorted(statements._lhs_signals(), key=lambda each: self.names[each])
            if not signal.reset_less and len(signal)
        ]
        if reset:
            lines += [f"    if ({self.names[domain.rst]}) begin", *reset, "    end"]
        return [f"  always_ff @(posedge {self.names[domain.clk]}) begin", *lines, "  end"]

    # What it contains

    def _children(self) -> list[str]:
        lines = list[str]()
        for number, (inner, name, _) in enumerate(self.fragment.subfragments):
            if isinstance(inner, MemoryInstance):
                lines += self._memory(inner, name or "memory")
            elif isinstance(inner, Instance):
                unused = {
                    port for port, (value, kind) in inner.ports.items() if kind == "o" and value not in self.names
                }
                ports = [
                    f".{port}({'' if port in unused else self.value(value)})"
                    for port, (value, _) in inner.ports.items()
                    if len(value)
                ]
                lines += _wrap_ports(f"{inner.type} {name}", ports)
            else:
                other = _Module(self.design, inner, "")
                info = self.design.fragments[inner]
                ports = [
                    f".{other.names[signal]}({self.names[signal]})"
                    for signal in other.names
                    if len(signal) and self.design.fragments[self.design.signal_lca[signal]].depth < info.depth
                ]
                lines += _wrap_ports(f"{self.name}_{name or number} {name or f'part{number}'}", ports)
        return lines

    def _memory(self, memory: Any, wanted: str) -> list[str]:
        """A memory with its ports, cleared at the start unless a file has its contents."""
        name, data = self._new(f"{wanted}_words"), memory._data
        width, depth = Value.cast(memory._read_ports[0]._data).shape().width, data.depth
        index = f"{name}_index"
        registered = [port for port in memory._read_ports if port._domain != "comb"]
        unlike = registered and not any(port._transparent_for for port in registered)
        lines = [  # a word that is written is not read in that cycle, or what is read is not used
            f"  {'(* no_rw_check *) ' if unlike else ''}logic [{width - 1}:0] {name} [0:{depth - 1}];",
            f'  initial $readmemh("{memory._attrs[CONTENTS]}", {name});'
            if CONTENTS in memory._attrs
            else f"  initial for (int {index} = 0; {index} < {depth}; {index}++)"
            f" {name}[{index}] = {_constant(0, width)};",
        ]
        assert not any(data._init._raw), wanted
        for port in memory._write_ports:
            clock, grain = self.names[memory.domains[port._domain].clk], port._granularity
            lines.append(f"  always_ff @(posedge {clock}) begin")
            address, value = self.value(port._addr) if len(port._addr) else "0", port._data
            for at in range(len(port._en)):
                enable, low = self.value(port._en[at]), at * grain
                cut = "" if grain == width else _bits(low, low + grain)
                lines.append(
                    f"    if ({enable}) {name}[{address}]{cut} <= {self.value(value[low : low + grain])};"
                )
            lines.append("  end")
        for port in memory._read_ports:
            if port._data not in self.names:
                continue
            target, address = self._target(port._data), self.value(port._addr) if len(port._addr) else "0"
            if port._domain == "comb":
                lines.append(f"  assign {target} = {name}[{address}];")
                continue
            clock, enable = self.names[memory.domains[port._domain].clk], self.value(port._en)
            always = not isinstance(port._en, Signal) or self.drivers.get(port._en) is None
            if port._transparent_for:
                assert always, wanted
                held = self._new(f"{name}_at")
                lines += [f"  logic {_range(len(port._addr))}{held} = {_constant(0, len(port._addr))};"]
                lines += [f"  always_ff @(posedge {clock}) {held} <= {address};"]
                lines += [f"  assign {target} = {name}[{held}];"]
            else:
                when = "" if always else f"if ({enable}) "
                held = self._new(f"{name}_read")
                lines += [f"  logic {_range(len(port._data))}{held} = {_constant(0, len(port._data))};"]
                lines += [f"  always_ff @(posedge {clock}) {when}{held} <= {name}[{address}];"]
                lines += [f"  assign {target} = {held};"]
        return lines


def _simple(lhs: Any) -> bool:
    """Whether a target is a signal or a slice of it."""
    while isinstance(lhs, (Slice, Operator)):
        lhs = lhs.value if isinstance(lhs, Slice) else lhs.operands[0]
    return isinstance(lhs, Signal)


def _read(statement: Any, signal: Any) -> Any:
    """The signals that a statement reads to assign this one."""
    if isinstance(statement, Assign):
        return statement.rhs._rhs_signals()
    found = statement.test._rhs_signals()
    for _, statements, _ in statement.cases:
        for each in statements:
            if signal in each._lhs_signals():
                found |= _read(each, signal)
    return found


def _description(fragment: Any) -> list[str]:
    """What a component is, and the source that its module names."""
    for origin in fragment.origins or ():
        text = inspect.getdoc(type(origin))
        if text and type(origin).__module__.startswith("npuc"):
            source = re.search(r"Source:[^.]*\.", inspect.getmodule(type(origin)).__doc__ or "")
            texts = [text, *([" ".join(source[0].split())] if source else [])]
            return [line for each in texts for part in each.split("\n\n") for line in textwrap.wrap(part, WIDTH)]
    return ["A FIFO." if "fifo" in str(fragment.origins) else "Part of the module above."]


def _constant(value: int, width: int) -> str:
    value &= (1 << width) - 1
    return f"{width}'d{value}" if value < 1 << 16 else f"{width}'h{value:x}"


def _unary(operator: str, text: str) -> str:
    """An operator before an expression, in parentheses: Yosys takes ~8'(x) for (~8)'(x)."""
    return f"({operator}{text})" if text.isidentifier() or text[0] in "({" else f"({operator}({text}))"


def _cast(width: int, text: str) -> str:
    return f"{width}'({text})"


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _bits(low: int, high: int) -> str:
    return f"[{low}]" if high == low + 1 else f"[{high - 1}:{low}]"


def _pattern(pattern: str) -> str:
    return f"{len(pattern)}'b{pattern.replace('-', '?')}"


def _indent(lines: Iterable[str], depth: int) -> list[str]:
    return [f"{'  ' * depth}{line}" for line in lines]


def _wrap_ports(head: str, ports: Sequence[str]) -> list[str]:
    return [
        f"  {head} (",
        *textwrap.wrap(", ".join(ports), WIDTH, initial_indent="    ", subsequent_indent="    "),
        "  );",
    ]
