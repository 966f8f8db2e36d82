"""Host steps: operators that run on the host processor, recorded in the manifest, computed in numpy.

A manifest has a program's steps in order: those of the host, and segments in the form of a target.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from npuc.errors import ArtefactError, NpucError, UnsupportedOperator
from npuc.frozen import frozen
from npuc.ir import Array, Node, TensorType, type_of
from npuc.ops import OPS, infer
from npuc.program import Port
from npuc.storage.records import damage_error, read
from npuc.system.budget import expect_room


@frozen
class HostStep:
    """One operator that the host computes: its name in npuc's table, its tensors and attributes."""

    node: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    conversion: bool
    """Whether it only converts an input or an output of the network."""
    reason: str

    @classmethod
    def constant(cls, name: str, value: Array) -> HostStep:
        """The step that provides a constant; the manifest holds its elements."""
        attrs = {"value": value.ravel().tolist(), "shape": list(value.shape), "dtype": str(value.dtype)}
        return cls(name, CONSTANT, (), (name,), attrs, conversion=True, reason="a constant of the network")

    def run(self, tensors: dict[str, Array]) -> None:
        """Computes the step for all samples: every tensor has a leading sample axis.

        tensors: at least the network's inputs, which determine the number of samples. Raises ArtefactError (E502)
        for a step that contradicts itself or its tensors.
        """
        with consistent(self), np.errstate(all="ignore"):
            inputs = [tensors[name] for name in self.inputs]
            outputs = self._compute(inputs) if inputs else (self._repeat(len(next(iter(tensors.values())))),)
            tensors.update(zip(self.outputs, outputs, strict=True))

    def conversion_numbers(self) -> tuple[float, int]:
        """Scale and zero point of a conversion. Raises ArtefactError (E502) if they are invalid."""
        with consistent(self):
            return float(self.attrs["scale"]), int(self.attrs.get("zero_point", 0))

    def as_node(self) -> tuple[Node, dict[str, Array]]:
        """The node of a graph that the step computes, and its constants: those of a conversion, or its value.

        Raises ArtefactError (E502) for a step that contradicts itself.
        """
        if self.op == CONSTANT:
            name = f"{self.outputs[0]}/{CONSTANT}"
            return Node("Identity", (name,), self.outputs, {}, self.node), {name: self.value}
        if self.op not in ("QuantizeLinear", "DequantizeLinear"):
            return Node(self.op, self.inputs, self.outputs, self.attrs, self.node), {}
        scale, zero = self.conversion_numbers()
        names = tuple(f"{self.outputs[0]}/{each}" for each in ("scale", "zero_point"))
        with consistent(self):
            values = (np.array(scale, "float32"), np.array(zero, self.attrs.get("dtype", "int8")))
        node = Node(self.op, (*self.inputs, *names), self.outputs, {}, self.node)
        return node, dict(zip(names, values, strict=True))

    @property
    def value(self) -> Array:
        """The tensor that a constant step provides. Raises ArtefactError (E502) if it is none."""
        with consistent(self):
            return np.array(self.attrs["value"], self.attrs["dtype"]).reshape(self.attrs["shape"])

    def _repeat(self, samples: int) -> Array:
        """A constant, repeated for every sample."""
        value = self.value
        return np.broadcast_to(value, (samples, *value.shape))

    @property
    def _zero(self) -> float:
        return float(self.attrs.get("zero_point", 0))

    def _compute(self, inputs: list[Array]) -> tuple[Array, ...]:
        match self.op:
            case "QuantizeLinear":
                return (quantise(inputs[0], self.attrs["scale"], self._zero, self.attrs.get("dtype", "int8")),)
            case "DequantizeLinear":
                return ((inputs[0].astype(np.float32) - np.float32(self._zero)) * np.float32(self.attrs["scale"]),)
            case "Transpose":
                return (inputs[0].transpose(0, *(axis + 1 for axis in self.attrs["perm"])),)
            case "Reshape":
                return (inputs[0].reshape(len(inputs[0]), *self.attrs["shape"]),)
            case op if op not in OPS:
                raise ValueError(f"npuc knows no operator {op!r}")
            case _:
                node = Node(self.op, self.inputs, self.outputs, self.attrs, self.node)
                self._expect_room(node, inputs)
                if self.op in ROWS and self.attrs["axis"] == inputs[0].ndim - 2:
                    return self._by_rows(inputs[0])
                if self.op in ROUNDED:
                    return self._by_onnxruntime(inputs)
                results = [OPS[self.op].compute(node, sample) for sample in zip(*inputs, strict=True)]
                return tuple(np.stack(column) for column in zip(*results, strict=True))

    def _expect_room(self, node: Node, inputs: list[Array]) -> None:
        """Raises ModelError (E105, E110) for attributes that contradict the inputs or need too much memory."""
        types = tuple(type_of(values[0]) for values in inputs)
        if types not in self._sizes:
            found = infer(node, types)
            self._sizes[types] = sum(each.bytes for each in found)
        expect_room(2 * self._sizes[types] * len(inputs[0]), "a tensor", node=self.node)

    @cached_property
    def _sizes(self) -> dict[tuple[TensorType, ...], int]:
        """Bytes of a sample's outputs, by the types of its inputs."""
        return {}

    def _by_rows(self, x: Array) -> tuple[Array, ...]:
        """Runs an operator along the last axis for all samples at once: rows do not depend on their number."""
        rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
        model, (name,) = self._session((type_of(rows),), (), {**self.attrs, "axis": 1})
        return (model.run(None, {name: rows})[0].reshape(x.shape),)

    def _by_onnxruntime(self, inputs: list[Array]) -> tuple[Array, ...]:
        """Runs an operator whose last bits depend on the implementation: the host's library is onnxruntime.

        A form that onnxruntime lacks is computed by npuc's interpreter.
        """
        constants = [values[0] for values in inputs[1:]] if self.op == "Conv" else []
        data = inputs[: len(inputs) - len(constants)]
        model, names = self._session(tuple(type_of(values[0]) for values in data), constants, self.attrs)
        results = [model.run(None, dict(zip(names, sample, strict=True))) for sample in zip(*data, strict=True)]
        return tuple(np.stack(column) for column in zip(*results, strict=True))

    @cached_property
    def _sessions(self) -> dict[tuple[TensorType, ...], Any]:
        """Cached sessions of this operator, by the types of its inputs."""
        return {}

    def _session(
        self, types: tuple[TensorType, ...], constants: Sequence[Array], attrs: Mapping[str, Any]
    ) -> tuple[Any, tuple[str, ...]]:
        """An onnxruntime session of this operator, and the names of its non-constant inputs."""
        from npuc.ops import build
        from npuc.reference import graph_session

        names = tuple(f"x{position}" for position in range(len(types)))
        if types not in self._sessions:
            outputs = tuple(f"y{position}" for position in range(len(self.outputs)))
            fixed = {f"c{position}": value for position, value in enumerate(constants)}
            node = Node(self.op, (*names, *fixed), outputs, attrs, self.node)
            graph = build("host", [node], dict(zip(names, types, strict=True)), outputs, fixed)
            self._sessions[types] = graph_session(graph, outputs)
        return self._sessions[types], names


@contextmanager
def consistent(step: HostStep) -> Generator[None]:
    """A block that uses a step's attributes, which come unchecked from the manifest: errors become E502."""
    try:
        yield
    except (UnsupportedOperator, ArtefactError):
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError, NpucError) as error:
        reason = f"the host step cannot be computed: {error!r}"
        raise ArtefactError("E502", reason, node=step.node, op=step.op) from None


CONSTANT = "Constant"
ROUNDED = ("Softmax", "LogSoftmax", "LRN", "Conv", "Resize")
"""Operators with float arithmetic beyond a single exact operation."""
ROWS = ("Softmax", "LogSoftmax")
"""Operators that compute every row along an axis independently."""


def less_128(before: HostStep, after: HostStep) -> bool:
    """Whether two steps, one behind the other, turn the uint8 of a frame into int8, less 128."""
    steps = [(each.op, each.attrs.get("scale"), each.attrs.get("dtype")) for each in (before, after)]
    same = steps == [("DequantizeLinear", steps[0][1], "uint8"), ("QuantizeLinear", steps[0][1], "int8")]
    zeros = (each.attrs.get("zero_point", 0) for each in (after, before))
    return same and before.outputs == after.inputs and next(zeros) == next(zeros) - 128


def quantise(x: Array, scale: float, zero: float = 0, dtype: str = "int8") -> Array:
    """Integers of float32 values: x / scale in float32, rounded half to even, plus zero, saturated (as in ONNX).

    NaN, which ONNX leaves undefined, counts as 0.
    """
    steps, limits = np.asarray(x / np.float32(scale)), np.iinfo(dtype)
    np.copyto(steps, 0, where=np.isnan(steps))
    np.add(np.rint(steps, out=steps), np.float32(zero), out=steps)
    return np.clip(steps, limits.min, limits.max, out=steps).astype(dtype)


Segment = TypeVar("Segment")
HOST, SEGMENT = "host", "segment"


@frozen
class _Kind:
    """The field that distinguishes the kinds of steps."""

    kind: str


def as_json(step: Any) -> dict[str, Any]:
    """A step, which is a dataclass, as an entry of the manifest."""
    return {"kind": HOST if isinstance(step, HostStep) else SEGMENT, **asdict(step)}


def steps_of(manifest: Mapping[str, Any], segment: type[Segment]) -> tuple[HostStep | Segment, ...]:
    """The steps in order. segment: the target's type. Raises ArtefactError (E502) for a malformed entry."""
    entries = enumerate(read(tuple[Any, ...], manifest.get("steps"), "steps"))
    return tuple(_step(entry, f"steps[{number}]", segment) for number, entry in entries)


def _step(entry: Any, where: str, segment: type[Segment]) -> HostStep | Segment:
    kind = read(_Kind, entry, where).kind
    if kind not in (HOST, SEGMENT):
        raise damage_error(f"{where} is of kind '{kind}'", f"{HOST}, {SEGMENT}")
    return read(HostStep, entry, where) if kind == HOST else read(segment, entry, where)


def computing(steps: Iterable[object]) -> list[HostStep]:
    """The host steps that do more than convert an input or an output."""
    return [step for step in steps if isinstance(step, HostStep) and not step.conversion]


def report_steps(steps: Iterable[object]) -> list[dict[str, str]]:
    """The same as a compile report lists them."""
    return [{"node": step.node, "op": step.op, "reason": step.reason} for step in computing(steps)]


def outputs_among(tensors: Mapping[str, Array], ports: Sequence[Port]) -> dict[str, Array]:
    """A program's outputs among the tensors of its steps. Raises ArtefactError (E502) if one is missing."""
    for port in ports:
        if port.name not in tensors:
            raise ungiven(port.name)
    return {port.name: tensors[port.name] for port in ports}


def ungiven(output: str) -> ArtefactError:
    """The error for an output that no step computes."""
    return damage_error("no step gives this output", tensor=output)
