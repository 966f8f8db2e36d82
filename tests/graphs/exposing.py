"""Networks as exporters write them, of which every inner tensor may be an output or have a second reader.

A pattern that a rewrite or a pass takes as a whole must not be taken where something else needs what is inside.
The yardstick is the model in a session of onnxruntime that npuc did not open; with products of integers, which
onnxruntime saturates on x64 without VNNI, the model under onnx's own evaluator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from npuc import api
from npuc.errors import NpucError
from npuc.ir import Array
from tests.graphs.checking import Finding
from tests.graphs.compiling import LEAST_DB, REFUSALS, Case

IMAGE, ROWS = (1, 4, 6, 6), (3, 8)
PATTERNS = {
    "a dynamic product": (ROWS, """q, s, z = DynamicQuantizeLinear (x)  m = MatMulInteger (q, i, z, zs)
        f = Cast <to = 1> (m)  k = Mul (s, c)  p = Mul (f, k)  y = Add (p, b)"""),
    "a dynamic convolution": (IMAGE, """q, s, z = DynamicQuantizeLinear (x)
        m = ConvInteger <pads = [1,1,1,1]> (q, ik, z)  f = Cast <to = 1> (m)  k = Mul (s, c)  p = Mul (f, k)
        y = Relu (p)"""),
    "dynamic values": (IMAGE, """q, s, z = DynamicQuantizeLinear (x)  d = DequantizeLinear (q, s, z)
        y = Conv (d, w)"""),
    "two products of dynamic values": (ROWS, """q, s, z = DynamicQuantizeLinear (x)  m = MatMulInteger (q, i, z)
        n = MatMulInteger (q, i, z, zs)  o = Add (m, n)  f = Cast <to = 1> (o)  g = Mul (f, s)  y = Mul (g, c)"""),
    "a quantised convolution": (IMAGE, """q = QuantizeLinear (x, c, zu)  d = DequantizeLinear (q, c, zu)
        w8 = QuantizeLinear (w, c, zi)  wd = DequantizeLinear (w8, c, zi)  a = Conv (d, wd)  r = Relu (a)
        t = QuantizeLinear (r, e, zu)  y = DequantizeLinear (t, e, zu)"""),
    "a gelu": (IMAGE, """a = Conv (x, w)  d = Div (a, e)  f = Erf (d)  g = Add (f, one)  h = Mul (a, g)
        y = Mul (h, c)"""),
    "a layer normalisation": (ROWS, """m = ReduceMean <axes = [-1]> (x)  d = Sub (x, m)  p = Pow (d, two)
        j = ReduceMean <axes = [-1]> (p)  a = Add (j, c)  r = Sqrt (a)  n = Div (d, r)  g = Mul (n, b)
        y = Add (g, b)"""),
    "a hard swish": (IMAGE, """a = Conv (x, w)  d = Add (a, three)  l = Clip (d, zero, six)  m = Mul (a, l)
        y = Div (m, six)"""),
    "batch normalisation": (IMAGE, """a = Pad (x, pads)  d = Conv (a, w)
        n = BatchNormalization (d, one3, c3, c3, one3)  y = LeakyRelu (n)"""),
    "an attention": (ROWS, """q = MatMul (x, u)  k = MatMul (x, v)  kt = Transpose <perm = [1,0]> (k)
        s = MatMul (q, kt)  d = Mul (s, c)  p = Softmax <axis = -1> (d)  o = MatMul (p, q)  y = Add (o, x)"""),
    "computed shapes": (IMAGE, """a = Conv (x, w)  s = Shape (a)  n = Gather <axis = 0> (s, index)
        l = Unsqueeze (n, axes)  t = Concat <axis = 0> (l, rest)  r = Reshape (a, t)  y = MatMul (r, u75)"""),
    "a shuffle of channels": (IMAGE, """a, d = Split <axis = 1> (x, halves)  l = Relu (a)
        o = Concat <axis = 1> (l, d)  r = Reshape (o, apart)  t = Transpose <perm = [0,2,1,3,4]> (r)
        u_ = Reshape (t, joined)  y = Conv (u_, w)"""),
    "a gate": (IMAGE, """a = Conv (x, w4)  p = GlobalAveragePool (a)  d = Conv (p, w4)  s = Sigmoid (d)
        m = Mul (a, s)  y = Add (m, x)"""),
    "casts and a choice": (ROWS, """i_ = Cast <to = 6> (x)  f = Cast <to = 1> (i_)  g = Greater (f, zero)
        o = Where (g, x, f)  k = ArgMax <axis = 1> (o)  y = Mul (o, b)"""),
    "a constant choice": (IMAGE, """a = Conv (x, w)  h = Identity (a)
        b_ = If (yes) <then_branch = g1 () => (inner) { inner = Relu (a) },
                       else_branch = g2 () => (other) { other = Neg (a) }>
        y, at = TopK <axis = 1> (b_, k2)"""),
}  # fmt: skip
"""By name, the input's shape and the nodes. No pattern needs another: every tensor starts from x."""


def constants() -> dict[str, Array]:
    """What the patterns read."""
    random = np.random.default_rng(0)

    def floats(*shape: int) -> Array:
        return (random.standard_normal(shape) * 0.5).astype(np.float32)

    numbers = {"c": 0.05, "e": 2**0.5, "one": 1, "two": 2, "three": 3, "six": 6, "zero": 0}
    lists = {
        "pads": [0, 0, 1, 1, 0, 0, 1, 1], "index": 1, "axes": [0], "rest": [-1], "halves": [2, 2],
        "apart": [1, 2, 2, 6, 6], "joined": [1, 4, 6, 6], "k2": [2],
    }  # fmt: skip
    found: dict[str, Any] = {
        **{name: np.float32(value) for name, value in numbers.items()},
        **{name: np.asarray(value, np.int64) for name, value in lists.items()},
        "i": random.integers(-100, 100, (8, 8)).astype(np.int8),
        "zs": np.arange(8).astype(np.int8),
        "ik": random.integers(-100, 100, (3, 4, 3, 3)).astype(np.int8),
        "zu": np.uint8(128), "zi": np.int8(0), "yes": np.array(True),
        "b": floats(8), "w": floats(3, 4, 2, 2), "w4": floats(4, 4, 1, 1), "u": floats(8, 8), "v": floats(8, 8),
        "u75": floats(25, 2), "one3": np.ones(3, np.float32), "c3": floats(3),
    }  # fmt: skip
    return {name: np.asarray(value) for name, value in found.items()}


def network(name: str) -> onnx.ModelProto:
    """A pattern as a model."""
    shape, nodes = PATTERNS[name]
    dims = ",".join(map(str, shape))
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[{dims}] x) => (y) {{ {nodes} }}')
    read = {each for node in model.graph.node for each in node.input}
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants().items() if k in {*read, "yes"}]
    model.graph.initializer.extend(held)
    return model


def inner(model: onnx.ModelProto) -> list[str]:
    """The tensors between input and outputs."""
    outputs = {each.name for each in model.graph.output}
    return [name for node in model.graph.node for name in node.output if name not in outputs]


def exposed(model: onnx.ModelProto, outputs: Sequence[str], read: Sequence[str]) -> onnx.ModelProto:
    """The model with more outputs, and with a second reader of these tensors, whose result is an output."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for name in read:
        made.graph.node.append(onnx.helper.make_node("Cast", [name], [f"{name}_f"], to=TensorProto.FLOAT))
        made.graph.node.append(onnx.helper.make_node("Mul", [f"{name}_f", "half"], [f"{name}_r"]))
    if read:
        made.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    names = [*outputs, *(f"{name}_r" for name in read)]
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return made


def drawn(seed: int) -> tuple[str, onnx.ModelProto]:
    """A pattern of which chance exposes tensors, and what it exposes."""
    random = np.random.default_rng(seed)
    name = [*PATTERNS][seed % len(PATTERNS)]
    model = network(name)
    chosen = random.integers(0, 4, len(inner(model)))
    outputs, read = ([each for each, how in zip(inner(model), chosen, strict=True) if how == at] for at in (0, 1))
    return f"{name}: outputs {', '.join(outputs)}; read {', '.join(read)}", exposed(model, outputs, read)


def check(model: onnx.ModelProto, case: Case, what: str) -> Finding | str:
    """A finding; or "ok", or the codes of a refusal."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (port,), names = session.get_inputs(), [each.name for each in session.get_outputs()]
    if any(node.op_type in ("ConvInteger", "MatMulInteger") for node in model.graph.node):
        session = ReferenceEvaluator(model)
    x = (np.random.default_rng(1).standard_normal((4, *port.shape)) * 2 + 0.3).astype(np.float32)
    rows = [session.run(names, {"x": each}) for each in x]
    wanted = {name: np.stack([row[at] for row in rows]) for at, name in enumerate(names)}
    try:
        program = api.compile(model, case.target, calibration={"x": x}, options=replace(case.options, proof="one"))
    except NpucError as error:
        codes = " ".join(sorted({each.code for each in error.problems}))
        known = all(each.code.startswith(REFUSALS) for each in error.problems)
        return codes if known else Finding(str(case), f"refused with {codes}", f"{what}: {error}")
    for name, found in program.run({"x": x}).items():
        right = wanted[name]
        if found.dtype != right.dtype or found.shape not in _shapes(right):
            return Finding(str(case), "changes the interface", f"{what}: {name}")
        db = _decibels(right.astype(float), np.reshape(found, right.shape))
        least = min(LEAST_DB[case.precision], 25.0) if "dynamic" in what else LEAST_DB[case.precision]
        if right.dtype.kind == "f" and db < least:  # integers and choices differ at ties
            return Finding(str(case), "far from onnxruntime", f"{what}: {name} {db:.1f} dB")
    report = api.verify(model, program, {"x": x})
    return "ok" if report["status"] == "ok" else Finding(str(case), "is not verified", f"{what}: {report}")


def _shapes(stacked: Array) -> set[tuple[int, ...]]:
    """That of the samples' values; an axis of images, of which there is one, is left out."""
    whole = stacked.shape
    return {whole, (whole[0], *whole[2:])} if whole[1:2] == (1,) else {whole}


def _decibels(wanted: Array, found: Array) -> float:
    signal, noise = (float(np.square(each).sum()) for each in (wanted, found - wanted))
    return 10 * float(np.log10(max(signal, 1e-30) / max(noise, 1e-30)))
