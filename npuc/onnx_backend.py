"""The interface that ONNX defines for backends, for any target.

prepared = npuc.backend("easynpu").prepare(onnx.load("model.onnx"))
(outputs,) = prepared.run([image])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from npuc.api import Compiled, Data, compile
from npuc.errors import DataError, NpucError
from npuc.flag import SYNTHETIC
from npuc.frontend.reading import NEWEST_OPSET
from npuc.frontend.widening import HALF
from npuc.ir import Array
from npuc.samples.structured import objects, row
from npuc.target import FLOATING, Options, usual_options

CALIBRATION_SAMPLES = 8
BFLOAT16 = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
NOTHING, SOME, EVERYTHING = "nothing", "some", "everything"
"""What the host runs: everything if the target refuses a model that cannot be calibrated."""


def _restore_type(value: Any, port: onnx.ValueInfoProto) -> Any:
    """A result in the model's own type where npuc reads half precision as float32."""
    code = port.type.tensor_type.elem_type
    return value.astype(helper.tensor_dtype_to_np_dtype(code)) if code in HALF else value


def _feed(value: Any) -> Any:
    """An input as a program takes it: numbers as arrays, and bfloat16, which a program has not, as float32."""
    made = np.asarray(value) if isinstance(value, np.generic) else value
    return made.astype(np.float32) if isinstance(made, np.ndarray) and made.dtype == BFLOAT16 else made


class Prepared(BackendRep):
    """A model, compiled at its first run: only then are the shapes of its inputs, and its weights, all known.

    First all inputs are data. If the target refuses that, all but the first become constants compiled into the
    program: weights, shapes and second operands. If it refuses that too, inputs are data and the host runs what
    the target does not, unless the options forbid it; the host runs everything if the inputs cannot calibrate.
    Without calibration data a run calibrates on its inputs and on random numbers of their mean, deviation and
    range.
    """

    def __init__(
        self, model: onnx.ModelProto, target: str, options: Options, calibration: Data | None = None
    ) -> None:
        self.model, self.target, self.options, self.calibration = model, target, options, calibration
        given = {each.name for each in model.graph.initializer}
        self.names = [port.name for port in model.graph.input if port.name not in given]
        self.way: tuple[int, str] | None = None
        """The number of inputs that are data, and what the host runs; None before the first run."""
        self.programs: dict[tuple[Any, ...], Compiled] = {}
        """Programs by the shapes of the inputs and the values of the constants."""

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in the model's order; inputs: in the model's order, or by name.

        Raises NpucError for what the target refuses, DataError (E401) for inputs that the model does not accept.
        """
        del kwargs
        feeds = self.feeds(inputs)
        compiled = self.compile_for(feeds)
        batch = {port.name: sample(feeds[port.name], port.dtype) for port in compiled.program.inputs}
        found = {name: row(values, 0) for name, values in compiled.runner(batch).items()}
        ports = self.model.graph.output
        return namedtupledict("Outputs", [port.name for port in ports])(
            *(_restore_type(found[p.name], p) for p in ports)
        )

    def compile_for(self, feeds: Mapping[str, Any]) -> Compiled:
        """The program for these inputs."""
        refusal: NpucError | None = None
        for data, host in dict.fromkeys(self._ways(feeds)):
            try:
                found = self._program(feeds, data, host)
            except NpucError as error:
                refusal = refusal or error
                continue
            self.way = data, host
            return found
        assert refusal is not None
        raise refusal

    def _ways(self, feeds: Mapping[str, Any]) -> Sequence[tuple[int, str]]:
        """Candidates (number of data inputs, what the host runs): the one found before, otherwise all."""
        if self.way is not None:
            return [self.way]
        count = len(self.names)
        alone = [(count, NOTHING), (min(count, 1), NOTHING)]
        hosted = [] if self.options.strict else [(count, SOME), (count, EVERYTHING)]
        return [*alone, *hosted] if all(map(is_numeric, feeds.values())) else [*hosted, *alone][:1]

    def feeds(self, inputs: Any) -> dict[str, Any]:
        """The inputs by name: arrays, or, for sequences and optional inputs, lists and None."""
        values = inputs if isinstance(inputs, Mapping) else dict(zip(self.names, inputs, strict=False))
        missing = [name for name in self.names if name not in values]
        if missing or len(inputs) != len(self.names):
            limit = f"the inputs {', '.join(self.names) or 'none'}"
            raise DataError("E401", f"{len(inputs)} inputs are fed", tensor=(*missing, None)[0], limit=limit)
        feeds = {name: values[name] for name in self.names}
        return {name: _feed(each) for name, each in feeds.items()}

    def _program(self, feeds: Mapping[str, Any], count: int, host: str) -> Compiled:
        data, constants = list(feeds.items())[:count], list(feeds.items())[count:]
        shapes = tuple(
            (each.shape, each.dtype.str) if isinstance(each, np.ndarray) else None for each in feeds.values()
        )
        key = (shapes, *(value.tobytes() for _, value in constants))
        if key not in self.programs:
            self.programs[key] = self._compile(dict(data), dict(constants), host)
        return self.programs[key]

    def _compile(self, data: Mapping[str, Any], constants: Mapping[str, Array], host: str) -> Compiled:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        for port in model.graph.input:
            value = data.get(port.name)
            if isinstance(value, np.ndarray) and is_numeric(value) and not value.size:
                port.CopyFrom(_port(port.name, value.dtype, value.shape))
        calibration = self.calibration
        numeric = all(map(is_numeric, data.values()))
        if calibration is None and self.options.precision not in FLOATING:
            given = {name: like(value) for name, value in data.items()} if data and numeric else None
            calibration = given or SYNTHETIC
        shapes = {name: value.shape for name, value in data.items() if is_numeric(value) and value.size}
        options = replace(self.options, strict=host == NOTHING)
        if host == EVERYTHING:
            options = replace(self.options, deny=tuple({node.op_type: None for node in model.graph.node}))
        return compile(model, self.target, calibration=calibration, input_shapes=shapes, options=options)


def is_numeric(value: Any) -> bool:
    """Whether an input is a tensor of numbers."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def sample(value: Any, dtype: str) -> Array:
    """An input as the one sample of a batch."""
    return value[None].astype(dtype) if is_numeric(value) else objects([value])


def like(value: Array) -> Array:
    """Samples like this one, which comes first: normal numbers with its mean, deviation and range."""
    if not value.size:
        return value[None]
    random = np.random.default_rng(0)
    others = [random.normal(value.mean(), value.std(), value.shape) for _ in range(CALIBRATION_SAMPLES - 1)]
    return np.stack([value, *(np.clip(other, value.min(), value.max()) for other in others)]).astype(value.dtype)


class NpucBackend(Backend):
    """A target as a backend: `backend` makes one."""

    target: ClassVar[str]
    options: ClassVar[Options]

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """The model, ready to run.

        calibration: samples to choose scales from, as for npuc.compile. Other keywords are ignored. Raises
        onnx.checker.ValidationError for an invalid model.
        """
        super().prepare(model, device, **kwargs)
        return Prepared(model, cls.target, cls.options, kwargs.get("calibration"))

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of a single node. outputs_info: dtype and shape of each, if ONNX cannot infer them."""
        values = [np.asarray(value) for value in inputs]
        names = [name for name in node.input if name]
        ports = [_port(name, value.dtype, value.shape) for name, value in zip(names, values, strict=True)]
        infos: list[tuple[Any, Sequence[int]]] = list(outputs_info or ())
        results = [_port(name, *info) for name, info in zip(node.output, infos, strict=False)]
        results += [onnx.ValueInfoProto(name=name) for name in list(node.output)[len(infos) :] if name]
        opset = helper.make_opsetid("", kwargs.pop("opset_version", NEWEST_OPSET))
        model = helper.make_model(helper.make_graph([node], "node", ports, results), opset_imports=[opset])
        return cls.prepare(onnx.shape_inference.infer_shapes(model), device, **kwargs).run(values)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The simulators run on the CPU."""
        return device.partition(":")[0] == "CPU"


def _port(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def backend(target: str, options: Options | None = None) -> type[NpucBackend]:
    """The backend of a target. Raises ValueError for an unknown one."""
    from npuc.registry import target as find

    chosen = options or usual_options(find(target))
    return type("NpucBackend", (NpucBackend,), {"target": target, "options": chosen})
