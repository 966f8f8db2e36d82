"""onnxruntime, the source of all expected values: sessions on one thread, with little memory, exact in integers.

On x64 with AVX2 and without VNNI, onnxruntime's products of uint8 and int8 saturate in 16 bits unless
`session.x64quantprecision` is set *and* its graph optimisations are on. Every session of npuc is opened here, so
that the reference for integers is the same on every processor.

Custom operator libraries are chosen by the user: every session loads those of the block. An artefact only names
the operators that it needs; nothing in it is ever loaded as code.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array, Graph
from npuc.onnx_files.standby import INTERPRETER, Interpreted, Standby
from npuc.storage.mapped import keep, place_of, trim
from npuc.system.budget import is_exhausted, no_memory
from npuc.system.confinement import isolate, runtime_refusal

if TYPE_CHECKING:
    import onnx


LARGE = 1 << 27
"""Bytes of float32 weights beyond which onnxruntime must not rearrange them, as that takes several copies."""
NO_WEIGHTS: Mapping[str, Array] = {}


FAULTY_OPTIMIZERS = (
    "ConvAddActivationFusion",
    "TransposeOptimizer",
    "TransposeOptimizer_CPUExecutionProvider",
    "ConstantSharing",
)
"""The first removes tensors that are model outputs. The next two quantise the data that a Transpose before a
QuantizeLinear moves, and give an output the values after it. The last gives equal constants one memory, although
BatchNormalization in training mode writes into that of its statistics: every run then has other constants."""
MISSHAPEN = "MatMulAddFusion"
"""It uses the shape that onnxruntime infers, which after pooling with ceil_mode may differ from the actual one."""
UNPACKED = "session.disable_prepacking"
PRECISE = "session.x64quantprecision"
"""Prevents saturation inside products of uint8 and int8."""


def exact_options(*, precise: bool = True) -> Any:
    """onnxruntime.SessionOptions that make integer operators exact on every processor, on one thread.

    precise: False for a model that onnxruntime cannot open with it, because it multiplies int8 by int8; that is
    exact in any case.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # no arena, which keeps all it had; nor one block for everything in a run, which is mapped anew in each
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.add_session_config_entry(PRECISE, str(int(precise)))
    # keep QuantizeLinear and DequantizeLinear: otherwise onnxruntime quantises float weights between them
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # and keep two successive pairs of them: otherwise one replaces both, and rounds to its own scale only
    options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    return options


def session(
    model: onnx.ModelProto | bytes | Path,
    weights: Mapping[str, Array] = NO_WEIGHTS,
    *,
    few_runs: bool = False,
    confined: bool = False,
    precise: bool = True,
) -> Any:
    """An onnxruntime.InferenceSession of the model on one CPU thread.

    model: a file may have external data. weights: the values of constants made external by `outside`; mapped ones
    (npuc.storage.mapped) are not copied. few_runs: open faster and run slower; only for models without
    integer products, which need the optimisations. confined: for untrusted models: run in a process with limits
    (npuc.system.confinement), and raise ModelError beyond them (E110, E111) and if onnxruntime cannot run the
    model (E105). precise: whether integer products are exact on every processor; they are faster without.
    Raises ModelError (E105) if onnxruntime refuses the model.
    """
    mapped = {name: keep(value) for name, value in weights.items()}
    given = _serialise(model, mapped)
    if mapped:
        trim()  # a session maps its weights itself
    products = isinstance(model, bytes | Path) or has_integer_products(model)  # the former are searched
    del model  # it takes as much memory as its bytes
    opened = partial(_try_session, given, mapped, few_runs=few_runs, precise=precise, products=products)
    found = isolate(opened) if confined else opened()
    if mapped:
        trim()  # temporary data of the opening
    return found


def _try_session(
    given: str | bytes, weights: Mapping[str, Array], *, few_runs: bool, precise: bool, products: bool
) -> Any:
    exact = _make_exact(given, weights) if precise and products else given
    try:
        return _open(exact, weights, few_runs=few_runs, precise=precise)
    except Exception:  # onnxruntime raises many unrelated types
        try:
            return _open(exact, weights, few_runs=few_runs, precise=False)
        except Exception as error:
            if is_exhausted(error):
                raise no_memory() from None
            raise runtime_refusal(error) from None


def _make_exact(given: str | bytes, weights: Mapping[str, Array]) -> str | bytes:
    """The same model in a form that is exact without PRECISE, if it is not exact here.

    PRECISE changes constant weights only, and with it onnxruntime opens no product of int8 and int8, and no two
    products that share weights or a zero point.
    """
    import onnx

    from npuc.onnx_files.integer_products import PRODUCTS, with_unsigned_weights
    from npuc.onnx_files.wire import may_contain

    texts = [name.encode() for name in PRODUCTS]
    inside = may_contain(Path(given), *texts) if isinstance(given, str) else any(text in given for text in texts)
    if not inside or integers_are_exact(precise=False):
        return given
    try:
        model = onnx.ModelProto.FromString(Path(given).read_bytes() if isinstance(given, str) else given)
    except Exception:  # protobuf's own; onnxruntime says what is wrong
        return given
    if isinstance(given, str):
        onnx.load_external_data_for_model(model, str(Path(given).parent))
    raised = with_unsigned_weights(model, weights)
    return given if raised is None else raised.SerializeToString()


def _serialise(model: onnx.ModelProto | bytes | Path, weights: Mapping[str, Array]) -> str | bytes:
    """The argument for onnxruntime: a path, or a model that names the files of its weights."""
    if isinstance(model, Path):
        return str(model)
    if isinstance(model, bytes):
        return model
    for tensor in model.graph.initializer:
        place = place_of(weights[tensor.name]) if tensor.name in weights else None
        if place is not None:
            entries = {"location": place.file.name, "offset": place.offset, "length": weights[tensor.name].nbytes}
            del tensor.external_data[:]
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
    return model.SerializeToString()


def _open(given: str | bytes, weights: Mapping[str, Array], *, few_runs: bool, precise: bool) -> Any:
    import onnxruntime as ort

    options = exact_options(precise=precise)
    register(options)
    if few_runs:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry(UNPACKED, "1")
    if weights:
        _add(options, weights)
        if sum(value.nbytes for value in weights.values() if value.dtype == np.float32) > LARGE and not few_runs:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.add_session_config_entry(UNPACKED, "1")
    without = FAULTY_OPTIMIZERS
    if isinstance(given, bytes):
        integers = len(given) + sum(value.nbytes for value in weights.values() if value.dtype != np.float32)
        if integers > LARGE // np.dtype(np.float32).itemsize:  # int8 weights, which are cast at run time
            without = (*without, "ConstantFolding")
        if b"ceil_mode" in given:
            without = (*without, MISSHAPEN)
    return ort.InferenceSession(given, options, providers=["CPUExecutionProvider"], disabled_optimizers=without)


def _add(options: Any, weights: Mapping[str, Array]) -> None:
    """Passes the weights to onnxruntime: those in files are mapped, others copied."""
    import onnxruntime as ort

    places = {name: place_of(value) for name, value in weights.items()}
    others = {name: weights[name] for name, place in places.items() if place is None}
    mapped = next(filter(None, places.values()), None)
    if mapped is not None:  # all are in one folder, of the process that mapped them: this may be its child
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(mapped.file.parent)
        )
    if others:
        values = [ort.OrtValue.ortvalue_from_numpy(value) for value in others.values()]
        options.add_external_initializers(list(others), values)


@cache
def integers_are_exact(*, precise: bool = True) -> bool:
    """Whether products of uint8 and int8 are exact here, tested by a convolution whose sums would saturate.

    precise: as in the sessions to be opened.
    """
    from onnx import TensorProto, helper, numpy_helper

    channels, scale = 16, 5080.0
    constants = {
        "xs": np.float32(1),
        "xz": np.uint8(0),
        "w": np.full((4, channels, 1, 1), 127, np.int8),
        "ws": np.float32(1),
        "wz": np.int8(0),
        "ys": np.float32(scale),
        "yz": np.uint8(0),
    }
    node = helper.make_node("QLinearConv", ["x", *constants], ["y"])
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.UINT8, [1, extent, 2, 2])
        for name, extent in (("x", channels), ("y", 4))
    )
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], values), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    (found,) = session(model, precise=precise).run(["y"], {"x": np.full((1, channels, 2, 2), 255, np.uint8)})
    return bool((found == channels * 255 * 127 / scale).all())


def expect_exact_integers(model: onnx.ModelProto) -> None:
    """Raises ArtefactError (E507) for a model with integer products if onnxruntime's are not exact here."""
    if has_integer_products(model) and not integers_are_exact():
        reason = "onnxruntime's products of uint8 and int8 saturate on this processor and cannot be compared with"
        raise ArtefactError("E507", reason, remedy="install a newer onnxruntime, or use a processor with VNNI")


def has_integer_products(model: onnx.ModelProto) -> bool:
    """Whether the model has operators that are exact only with the optimisations."""
    from npuc.onnx_files.integer_products import PRODUCTS
    from npuc.onnx_files.subgraphs import nodes_in

    return any(node.op_type in PRODUCTS for node in nodes_in(model.graph.node))


def graph_session(graph: Graph, outputs: Sequence[str], *, few_runs: bool = False) -> Standby:
    """A session of a float graph with these of its tensors as outputs; it shares the graph's constants.

    What onnxruntime does not run, npuc's interpreter does.
    """
    from npuc.onnx_files.export import to_onnx

    def open_session() -> Any:
        weights: dict[str, Array] = {}
        return session(to_onnx(graph, outputs, weights), weights, few_runs=few_runs)

    return Standby(open_session, {INTERPRETER: lambda: Interpreted(graph, outputs)})


BRIEF = 5_000_000
"""Multiply-accumulates per node, in all runs of a session, that take as long as onnxruntime's optimisations."""


def integer_session(graph: Graph, outputs: Sequence[str], runs: int) -> Any:
    """A session of an integer graph with these of its tensors as outputs, opened with that many runs in mind."""
    from npuc.onnx_files.export import to_onnx

    model = to_onnx(graph, outputs, folded=True)
    brief = _multiplications(graph) * runs < BRIEF * len(graph.nodes)
    return session(model, few_runs=brief and not has_integer_products(model))


def _multiplications(graph: Graph) -> int:
    """Those of a graph's convolutions, which have constant weights of rank 4, per run."""
    weighted = ((node, graph.constants.get(node.inputs[1])) for node in graph.nodes if len(node.inputs) > 1)
    return sum(
        graph.tensors[node.output].size * w[0].size for node, w in weighted if w is not None and w.ndim == 4
    )


def values_of(session: Any, names: Sequence[str], feed: Mapping[str, Array]) -> dict[str, Array]:
    """The values of these outputs of a session; none for no names, which onnxruntime reads as all."""
    return dict(zip(names, session.run(list(names), dict(feed)), strict=True)) if names else {}


def present(model: Any, names: Sequence[str]) -> list[str]:
    """The names that a node of the ONNX model writes."""
    written = {name for node in model.graph.node for name in node.output}
    return [name for name in names if name in written]


def with_outputs(model: Any, names: Sequence[str]) -> Any:
    """The model with exactly these outputs; onnxruntime infers their types."""
    from onnx import ValueInfoProto

    known = {each.name: each for each in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(known.get(name, ValueInfoProto(name=name)) for name in names)
    return model


REMEDY = "let NPUC_CUSTOM_OPS=FILE.so name the library that has them"
STANDARD = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of operators that onnxruntime includes."""
_libraries: ContextVar[tuple[str, ...]] = ContextVar("custom_ops", default=())


@contextmanager
def custom_ops(files: Sequence[Path | str]) -> Generator[None]:
    """A block whose sessions have the operators of these libraries.

    Raises ArtefactError (E507) for a file that is not such a library. Their entry point is RegisterCustomOps of
    onnxruntime's C API.
    """
    given = tuple(str(Path(file).resolve()) for file in files)
    if given:
        _expect_libraries(given)
    token = _libraries.set((*_libraries.get(), *given))
    try:
        yield
    finally:
        _libraries.reset(token)


def libraries() -> tuple[str, ...]:
    """The libraries of the current block, for another process."""
    return _libraries.get()


def _expect_libraries(files: Sequence[str]) -> None:
    import onnxruntime as ort

    for file in files:
        try:
            ort.SessionOptions().register_custom_ops_library(file)
        except Exception as error:  # onnxruntime raises many unrelated types
            reason = f"onnxruntime cannot load '{file}': {error}"
            remedy = "give a shared library that exports RegisterCustomOps, built for this system"
            raise ArtefactError("E507", reason, remedy=remedy) from None


def register(options: Any) -> None:
    """Registers the operators for a session. options: onnxruntime.SessionOptions."""
    for file in _libraries.get():
        options.register_custom_ops_library(file)
