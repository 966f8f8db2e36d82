"""The user's model under onnxruntime, untouched, and how far the noise of its own formats moves its outputs.

Two computations of one network round differently, and a network may amplify that: through depth, through
cancellation, or by quantising a value near a tie. What may differ is therefore measured, as in Monte Carlo
arithmetic, on the model itself: its inputs and the result of every node are perturbed by some times what their
format rounds, and outputs may be off by FACTOR times the change. Source: Parker, Monte Carlo Arithmetic, UCLA
CSD-970002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import ModelError
from npuc.frontend.reading import parse_model
from npuc.images.description import Description
from npuc.ir import Array
from npuc.onnx_files.standby import Standby
from npuc.onnx_files.subgraphs import tensor_names
from npuc.reference import values_of, with_outputs
from npuc.regions.witnesses import file_session, foreign_session
from npuc.samples.structured import comparable, leaves
from npuc.text.escaping import Names

if TYPE_CHECKING:
    import onnx

RELATIVE, OF_LARGEST = 1e-4, 1e-5
"""Tolerances for agreement outright: relative to each element, and to the largest of its tensor."""
OF_SEQUENCE = 1e-3
"""The same for a tensor within a sequence, as a whole."""
STEPS = "steps"
MOVED = {"float": 2.0**-14, "double": 2.0**-14, "float16": 2.0**-9, "bfloat16": 2.0**-6, STEPS: 2.0 / 255}
"""The most relative perturbation by element type: 1,000 times what float32 rounds, 4 times what
float16 and bfloat16 do. STEPS: of what is quantised dynamically, as a part of its range: two steps."""
DRAWS = 3
"""The number of random perturbations."""
FACTOR = 2.0
"""Permitted error, as a multiple of the change."""
WHOLE = 1 << 25
"""Bytes up to which onnxruntime reads the file itself: it makes two copies of it."""
NUMPY = {"float": "float32", "double": "float64"}
"""onnxruntime's names of element types, where numpy has others."""
Values = dict[str, Array]
Noise = Mapping[str, tuple[float, float]]
"""The change of tensors under perturbation: root of the sum of squares, and largest element."""


class JudgedModel:
    """A model that onnxruntime runs: the user's file, or what a rewrite makes of it.

    bound: values of inputs that are bound to constants. images: the inputs that samples give as frames; each is
    converted here, outside of the model. Raises ModelError (E105) if onnxruntime refuses the model.
    """

    def __init__(
        self,
        model: Path | onnx.ModelProto,
        folder: Path | None,
        bound: Mapping[str, float] | None = None,
        images: Sequence[Description] = (),
    ) -> None:
        self.model, self.folder, self.bound = model, folder, bound or {}
        self.frames = {each.input: each for each in images if each.fused}
        self.large = isinstance(model, Path) and model.stat().st_size > WHOLE
        """Whether to avoid two copies of the weights in memory: each session is then closed after its run."""
        self._sessions: dict[bool, Standby] = {}
        self.substitute = ""
        """What takes onnxruntime's place, and why; empty while that runs the model."""
        opened = self._session(optimised=True)
        self.substitute = opened.said
        self.outputs = {each.name: each.type for each in opened.get_outputs()}
        """Types of the outputs, in onnxruntime's notation."""

    def run(self, feed: Mapping[str, Array], *, optimised: bool = True, twice: bool = False) -> Values:
        """The outputs on a sample. Raises ModelError (E105) if nothing runs it, or two runs give other values."""
        session = self._session(optimised=optimised)
        found = _run(session, [*self.outputs], self._own_inputs(feed), self.bound)
        self.substitute = session.said
        again = _run(session, [*self.outputs], self._own_inputs(feed), self.bound) if twice else found
        if self.large:
            self.release()
        for name, each in found.items():
            if not is_same(each, again[name]):
                raise ModelError("E105", RANDOM, tensor=name, remedy="export the model for inference")
        return found

    def release(self) -> None:
        """Closes the sessions, which hold copies of the weights."""
        self._sessions.clear()

    def of(self, names: Sequence[str], feed: Mapping[str, Array]) -> Values:
        """The values of these tensors on a sample. Raises ModelError (E105) for types that cannot be outputs."""
        return _run(
            foreign_session(with_outputs(self._proto(), names), self.folder),
            names,
            self._own_inputs(feed),
            self.bound,
        )

    def _own_inputs(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        """The values of the model's own inputs."""
        return {name: self.frames[name].values_of(x) if name in self.frames else x for name, x in feed.items()}

    def noise(self, feed: Mapping[str, Array], names: Sequence[str]) -> Noise:
        """How far these tensors move under perturbation. Raises ModelError as `of`."""
        still, moved = self.of(names, feed), self.perturbed_runner(names)
        noise = dict.fromkeys(names, (0.0, 0.0))
        for draw in range(DRAWS):
            for name, each in moved(feed, draw).items():
                apart = distance(still[name], each)
                noise[name] = max(noise[name][0], apart[0]), max(noise[name][1], apart[1])
        return noise

    def perturbed_runner(
        self, names: Sequence[str], parts: Mapping[str, float] = MOVED
    ) -> Callable[[Mapping[str, Array], int], Values]:
        """What gives these tensors for a sample, its inputs and all results moved by random parts of their values.

        parts: the most, by element type. The draws of every call are the same, from the first on.
        """
        try:
            moving = foreign_session(with_outputs(self._disturb(parts), names), self.folder)
        except ModelError:  # an operator of the user's own, for instance, whose result cannot be multiplied
            moving = foreign_session(with_outputs(self._proto(), names), self.folder)

        kinds = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in moving.get_inputs()}
        size = {name: parts[kind] for name, kind in kinds.items() if kind in parts}

        def run(feed: Mapping[str, Array], draw: int) -> Values:
            random = np.random.default_rng(draw)
            own = self._own_inputs(feed).items()
            fed = {name: _shift(each, random, size.get(name, parts["float"])) for name, each in own}
            return _run(moving, names, fed, self.bound)

        return run

    def beyond(self, feed: Mapping[str, Array], wanted: Values, found: Mapping[str, Array]) -> str | None:
        """The first tensor whose values its own noise does not explain; None if all agree.

        wanted: the form's values of these tensors.
        """
        unlike = [name for name, each in wanted.items() if not agree(each, found[name])]
        strange = [name for name in unlike if not _numbers(wanted[name], found[name])]
        if strange or not unlike:
            return next(iter(strange), None)
        noise = self.noise(feed, unlike)
        return next((name for name in unlike if not is_within(wanted[name], found[name], noise[name])), None)

    def resized_outputs(self, feed: Mapping[str, Array], wanted: Values, found: Mapping[str, Any]) -> set[str]:
        """The outputs of another shape than the form's own, where its noise changes the shape as well."""
        names = [
            name
            for name, each in wanted.items()
            if name in found and _numbers(each, found[name]) and not _is_alike(each, found[name])
        ]
        return {name for name, (moved, _) in (self.noise(feed, names) if names else {}).items() if moved == np.inf}

    def _session(self, *, optimised: bool) -> Standby:
        found = self._sessions.get(optimised)
        if found is None:
            if isinstance(self.model, Path) and not self.large and _is_text(self.model):
                found = file_session(self.model, few_runs=not optimised)
            else:
                found = foreign_session(self._proto(), self.folder, few_runs=not optimised)
            self._sessions[optimised] = found
        return found

    def _proto(self) -> onnx.ModelProto:
        """The model, for changes."""
        if isinstance(self.model, Path):
            return parse_model(self.model, whole=not self.large)
        made = type(self.model)()
        made.CopyFrom(self.model)
        return made

    def _disturb(self, parts: Mapping[str, float]) -> onnx.ModelProto:
        """The model with a perturbation behind every float result, and before dynamic quantisations."""
        from onnx import inliner

        model = self._proto()
        if model.functions:
            with suppress(Exception):  # what the inliner refuses is perturbed around its calls
                model = inliner.inline_local_functions(model)
        names = [name for node in model.graph.node for name in node.output if name]
        made = type(model)()
        made.CopyFrom(model)
        types: dict[str, str] = {}
        with suppress(ModelError):  # an inner tensor has a type that cannot be an output
            found = foreign_session(with_outputs(made, names), self.folder).get_outputs()
            types = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in found}
        nodes = [*_perturb_nodes(model.graph.node, types, parts, Names(tensor_names(model.graph)))]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        return model


def _is_text(path: Path) -> bool:
    """Whether onnxruntime can read a file of this name."""
    return str(path).encode("utf-8", "replace") == bytes(path)


def _perturb_nodes(
    nodes: Iterable[onnx.NodeProto], types: Mapping[str, str], parts: Mapping[str, float], names: Names
) -> Iterator[onnx.NodeProto]:
    from onnx import TensorProto, helper

    for seed, node in enumerate(nodes):
        made, behind = type(node)(), list[Any]()
        made.CopyFrom(node)
        if node.op_type == "DynamicQuantizeLinear" or any(
            each.name == "accuracy_level" and each.i > 1 for each in node.attribute
        ):  # MatMulNBits: whether onnxruntime rounds x to int8 depends on the processor and the session's options
            made.input[0] = names.new(f"{node.input[0]}/moved")
            yield from _moved_by_steps(node.input[0], made.input[0], names, parts[STEPS], seed)
        if node.op_type.startswith("QLinear") and len(node.input) > 1:  # it rounds inside: its scale is moved
            scale, factor = node.input[1], names.new(f"{node.output[0]}/factor")
            made.input[1] = names.new(f"{node.output[0]}/scale")
            yield _random(scale, factor, (1 - parts["float"], 1 + parts["float"]), seed)
            yield helper.make_node("Mul", [scale, factor], [made.input[1]])
        for at, name in enumerate(node.output):
            if types.get(name) not in MOVED:
                continue
            made.output[at], factor, cast = (names.new(f"{name}/{what}") for what in ("still", "moves", "cast"))
            part, code = parts[types[name]], helper.np_dtype_to_tensor_dtype(_dtype(types[name]))
            if types[name] == "bfloat16":  # of which onnxruntime has no product
                wide, moved = names.new(f"{name}/wide"), names.new(f"{name}/moved")
                behind += [
                    helper.make_node("Cast", [made.output[at]], [wide], to=int(TensorProto.FLOAT)),
                    _random(wide, factor, (1 - part, 1 + part), seed),
                    helper.make_node("Mul", [wide, factor], [moved]),
                    helper.make_node("Cast", [moved], [name], to=code),
                ]
                continue
            behind += [
                _random(made.output[at], factor, (1 - part, 1 + part), seed),
                helper.make_node("Cast", [factor], [cast], to=code),
                helper.make_node("Mul", [made.output[at], cast], [name]),
            ]
        yield made
        yield from behind


def _moved_by_steps(source: str, result: str, names: Names, part: float, seed: int) -> Iterator[onnx.NodeProto]:
    """What moves a tensor by a part of the range that DynamicQuantizeLinear gives it, which includes 0."""
    from onnx import helper

    high, low, below, above, under, span, noise, apart = (names.new(f"{source}/{at}") for at in range(8))
    yield helper.make_node("ReduceMax", [source], [high], keepdims=0)
    yield helper.make_node("ReduceMin", [source], [low], keepdims=0)
    yield helper.make_node("Neg", [low], [below])
    yield helper.make_node("Relu", [high], [above])
    yield helper.make_node("Relu", [below], [under])
    yield helper.make_node("Add", [above, under], [span])
    yield _random(source, noise, (-part, part), seed)
    yield helper.make_node("Mul", [noise, span], [apart])
    yield helper.make_node("Add", [source, apart], [result])


def _random(like: str, result: str, span: tuple[float, float], seed: int) -> onnx.NodeProto:
    """Random numbers in the shape of a tensor, the same in every process."""
    from onnx import TensorProto, helper

    low, high = span
    kind = int(TensorProto.FLOAT)
    return helper.make_node(
        "RandomUniformLike", [like], [result], low=low, high=high, seed=float(seed), dtype=kind
    )


def _run(opened: Any, names: Sequence[str], feed: Mapping[str, Array], bound: Mapping[str, float]) -> Values:
    ports = opened.get_inputs()
    try:
        fed = {each.name: _input_value(each, feed, bound) for each in ports}
        batch = _batch(ports, fed)
        several = (
            [fed] if batch == 1 else [{name: x[at : at + 1] for name, x in fed.items()} for at in range(batch)]
        )
        runs = [values_of(opened, names, each) for each in several]
        found = (
            runs[0] if len(runs) == 1 else {name: np.concatenate([run[name] for run in runs]) for name in names}
        )
        return {name: _computable(each) for name, each in found.items()}
    except ModelError:
        raise
    except Exception as error:  # onnxruntime raises many unrelated types
        raise ModelError("E105", f"onnxruntime cannot run the model: {error}") from None


def _batch(ports: Sequence[Any], fed: Mapping[str, Array]) -> int:
    """The samples to run one after the other: those of a feed for a model that is fixed to one (rebatching)."""
    if not ports or any(not port.shape or port.shape[0] != 1 for port in ports):
        return 1
    given = {fed[port.name].shape[:1] for port in ports}
    return max(*given.pop(), 1) if len(given) == 1 else 1


def _computable(value: Any) -> Any:
    """A value; bfloat16, in which numpy does not compute, as float32."""
    return value.astype(np.float32) if getattr(value, "dtype", None) == "bfloat16" else value


def _input_value(port: Any, feed: Mapping[str, Array], bound: Mapping[str, float]) -> Array:
    """The value of an input in the model's own type."""
    if port.name in bound:
        return np.full([1] * len(port.shape), bound[port.name], _dtype(port.type))
    value = feed[port.name]
    return value.astype(_dtype(port.type)) if getattr(value, "dtype", np.dtype(int)).kind == "f" else value


def _dtype(said: str) -> np.dtype[Any]:
    """An element type of onnxruntime."""
    name = said.removeprefix("tensor(").removesuffix(")")
    return np.dtype(NUMPY.get(name, name))


def _shift(values: Array, random: np.random.Generator, part: float) -> Array:
    """Each element changed by up to a part of its value; arrays other than float32 stay."""
    if getattr(values, "dtype", None) != np.float32:
        return values
    return np.asarray(values * (1 + part * random.uniform(-1, 1, values.shape))).astype(np.float32)


RANDOM = "the model gives other values in every run: there is nothing to compare with"


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal in every bit; NaN equals NaN."""
    return comparable(one, other) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(leaves(one), leaves(other), strict=True)
    )


def agree(wanted: Any, found: Any) -> bool:
    """Whether two values are equal, tensors of floats up to rounding."""
    if not _is_alike(wanted, found):
        return comparable(wanted, found) and all(
            _is_near(a, b) if _is_alike(a, b) else bool((a == b).all())
            for a, b in zip(leaves(wanted), leaves(found), strict=True)
        )
    if wanted.dtype.kind != "f":
        return bool(np.array_equal(wanted, found))
    exact = wanted.astype(np.float64)
    tolerance = OF_LARGEST * float(np.abs(exact[np.isfinite(exact)]).max(initial=0))
    return bool(np.isclose(found, exact, rtol=RELATIVE, atol=tolerance, equal_nan=True).all())


def _is_near(wanted: Array, found: Array) -> bool:
    """Whether tensors within a sequence agree, whose noise is not measured."""
    apart, _ = distance(wanted, found)
    return agree(wanted, found) or apart <= OF_SEQUENCE * distance(wanted, np.zeros_like(wanted))[0]


def _is_alike(wanted: Any, found: Any) -> bool:
    """Whether both are tensors of numbers in one shape."""
    return _numbers(wanted, found) and wanted.shape == found.shape


def _numbers(wanted: Any, found: Any) -> bool:
    """Whether both are tensors of numbers, with as many axes."""
    arrays = isinstance(wanted, np.ndarray) and isinstance(found, np.ndarray)
    return arrays and wanted.dtype.kind in "fiub" and wanted.ndim == found.ndim


def is_within(wanted: Array, found: Array, noise: Sequence[float]) -> bool:
    """Whether tensors of one shape agree, or differ by no more than FACTOR times their own noise."""
    return agree(wanted, found) or all(
        apart <= FACTOR * move for apart, move in zip(distance(wanted, found), noise, strict=True)
    )


def distance(one: Array, other: Array) -> tuple[float, float]:
    """The root of the sum of squares of a difference, and its largest element.

    Infinite or undefined values in both count as equal. Infinite for other shapes: of boxes, for instance, whose
    number depends on values.
    """
    if one.shape != other.shape:
        return np.inf, np.inf
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    apart = np.nan_to_num(apart, nan=np.inf)
    return float(np.sqrt(np.square(apart).sum())), float(apart.max(initial=0))
