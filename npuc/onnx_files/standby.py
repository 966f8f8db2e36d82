"""What takes onnxruntime's place for a model that it does not run: onnx's evaluator, or npuc's interpreter.

Neither is right by itself: a proof compares what it gives for the model with what the passes made of that, and the
report tells it (`Standby.said`). Both have the interface of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npuc.errors import ModelError
from npuc.ir import Array, Graph
from npuc.ops.interpreter import run
from npuc.system.confinement import PortType, runtime_refusal

if TYPE_CHECKING:
    import onnx


EVALUATOR, INTERPRETER = "onnx's reference evaluator", "npuc's interpreter"


class Standby:
    """A session of onnxruntime; another one takes its place where onnxruntime refuses the model or a run."""

    def __init__(self, opened: Callable[[], Any], others: Mapping[str, Callable[[], Any]]) -> None:
        """others: by name, in order. Raises ModelError, as `runtime_refusal` says, if none can be opened."""
        self.others = others
        self.by = "onnxruntime"
        """Who runs the model."""
        self.refusal: ModelError | None = None
        """Why onnxruntime does not."""
        try:
            self.session: Any = opened()
        except ModelError as error:
            self.session = self._substitute(error, lambda other: other)

    @property
    def said(self) -> str:
        """What takes onnxruntime's place, and why; empty while that runs the model."""
        return f"{self.by} is the reference: {self.refusal.problems[0].reason}" if self.refusal else ""

    def get_inputs(self) -> Sequence[Any]:
        """Name, shape and type of every input."""
        found: Sequence[Any] = self.session.get_inputs()
        return found

    def get_outputs(self) -> Sequence[Any]:
        """Name, shape and type of every output."""
        found: Sequence[Any] = self.session.get_outputs()
        return found

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """These outputs, or all. Raises ModelError: E105 if none computes them, E110 and E111 beyond limits."""
        try:
            found: list[Any] = self.session.run(names, feeds)
        except MemoryError:
            raise
        except Exception as error:  # onnxruntime raises many unrelated types
            refusal = self.refusal or (error if isinstance(error, ModelError) else runtime_refusal(error))
            found = self._substitute(refusal, lambda other: self._instead(other, names, feeds))
        return found

    def _instead(self, other: Any, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        found: list[Any] = other.run(names, feeds)
        self.session = other
        return found

    def _substitute(self, refusal: ModelError, use: Callable[[Any], Any]) -> Any:
        """What `use` gives of the next other session it takes. Raises the refusal without one, or of a limit."""
        (problem,) = refusal.problems
        names = [*self.others]
        if problem.code == "E105":
            for name in names[names.index(self.by) + 1 if self.by in names else 0 :]:
                try:
                    found = use(self.others[name]())
                except Exception:  # as many types as the substitutes have operators
                    continue
                self.by, self.refusal = name, refusal
                return found
        raise refusal


class Evaluated:
    """A model under onnx's reference evaluator. weights: the values of constants made external by `outside`."""

    def __init__(self, model: onnx.ModelProto | bytes, weights: Mapping[str, Array]) -> None:
        """Raises what the evaluator raises for a model that it does not take."""
        from onnx.reference import ReferenceEvaluator

        complete = inline_weights(model, weights)
        self.evaluator = ReferenceEvaluator(complete)
        self.describe(complete)

    def describe(self, model: onnx.ModelProto) -> None:
        """Sets what `get_inputs` and `get_outputs` give."""
        constants = {each.name for each in model.graph.initializer}
        self.inputs = [_port_type(each) for each in model.graph.input if each.name not in constants]
        self.outputs = [_port_type(each) for each in model.graph.output]

    def get_inputs(self) -> Sequence[PortType]:
        """Name, shape and type of every input."""
        return self.inputs

    def get_outputs(self) -> Sequence[PortType]:
        """Name, shape and type of every output."""
        return self.outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """These outputs, or all."""
        found = self.evaluator.run(list(names) if names else None, dict(feeds))
        assert not isinstance(found, dict)
        return list(found)


def inline_weights(model: onnx.ModelProto | bytes, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """A copy of the model with these of its constants inside."""
    from onnx import ModelProto, numpy_helper

    found = ModelProto.FromString(model if isinstance(model, bytes) else model.SerializeToString())
    for tensor in found.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return found


def _port_type(info: onnx.ValueInfoProto) -> PortType:
    """A value of a model, in onnxruntime's terms."""
    from onnx import TensorProto

    kind = info.type.tensor_type
    shape = [each.dim_value if each.HasField("dim_value") else each.dim_param or None for each in kind.shape.dim]
    return PortType(info.name, shape, f"tensor({TensorProto.DataType.Name(kind.elem_type).lower()})")


class Interpreted:
    """A graph under npuc's interpreter, with these of its tensors as outputs."""

    def __init__(self, graph: Graph, outputs: Sequence[str]) -> None:
        self.graph, self.names = graph, list(outputs)

    def get_inputs(self) -> Sequence[PortType]:
        """Name, shape and type of every input."""
        return [self._port_type(name) for name in self.graph.inputs]

    def get_outputs(self) -> Sequence[PortType]:
        """Name, shape and type of every output."""
        return [self._port_type(name) for name in self.names]

    def _port_type(self, name: str) -> PortType:
        found = self.graph.tensors[name]
        return PortType(name, found.shape, f"tensor({found.dtype.replace('float32', 'float')})")

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """These outputs, or all. Raises DataError (E401, E402) for feeds that do not fit."""
        return list(run(self.graph, feeds, names or self.names).values())
