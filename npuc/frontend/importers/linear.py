"""Matrix products: products with a weight become Gemm, with the weight as (N, K)."""

from __future__ import annotations

import numpy as np

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers.importer import Importer
from npuc.ops.attributes import AXIS


def _is_weight(to: NodeBuilder, name: str) -> bool:
    """Whether the tensor is a constant matrix, or the DequantizeLinear of one."""
    producer = to.producers.get(name)
    dequantised = producer is not None and producer.op == "DequantizeLinear"
    held = dequantised and producer is not None and all(each in to.constants for each in producer.inputs)
    return len(to.shape(name)) == 2 and (name in to.constants or held)


def _transposed(node: OnnxNode, to: NodeBuilder, name: str) -> str:
    """The transposed weight: a new constant, or a new DequantizeLinear of one."""
    if name in to.constants:
        return to.constant(node, "weight", np.ascontiguousarray(to.constants[name].T))
    dequantize = to.producers[name]
    x, *scales = dequantize.inputs
    turned = to.constant(node, "weight", np.ascontiguousarray(to.constants[x].T))
    return to.emit(node, "DequantizeLinear", (turned, *scales), (), axis=1 - AXIS(dequantize))


def _matmul(node: OnnxNode, to: NodeBuilder) -> None:
    """A vector operand becomes a matrix of one row or column, which is removed again from the result."""
    shapes = [to.shape(name) for name in node.inputs]
    vectors = [place for place, shape in enumerate(shapes) if len(shape) == 1]
    if not vectors or not min(map(len, shapes)):
        _product(node, to, node.inputs[0], node.inputs[1])
        return
    matrices = list(node.inputs)
    for place in vectors:
        shape = (1, *shapes[place]) if place == 0 else (*shapes[place], 1)
        matrices[place] = to.emit(node, "Reshape", (matrices[place],), (), shape=shape)
    product = _product(node, to, matrices[0], matrices[1], ())
    shape = np.delete(to.shape(product), [place - 2 for place in vectors])
    to.emit(node, "Reshape", (product,), shape=tuple(map(int, shape)))


def _product(node: OnnxNode, to: NodeBuilder, x: str, w: str, outputs: tuple[str, ...] | None = None) -> str:
    if len(to.shape(x)) == 2 and x not in to.constants and _is_weight(to, w):
        return to.emit(node, "Gemm", (x, _transposed(node, to, w)), outputs)
    return to.emit(node, "MatMul", (x, w), outputs)


def _gemm(node: OnnxNode, to: NodeBuilder) -> None:
    """alpha * A * B + beta * C, each factor transposed if the attributes say so."""
    a, b = node.inputs[:2]
    if len(to.shape(a)) != 2 or len(to.shape(b)) != 2:
        reason = f"the factors have shapes {list(to.shape(a))} and {list(to.shape(b))}"
        raise node.bad(reason, limit="two dimensions each")
    if node.attrs["transA"]:
        a = to.emit(node, "Transpose", (a,), (), perm=(1, 0))
    scaled = b in to.constants or node.attrs["alpha"] == 1
    if a not in to.constants and _is_weight(to, b) and scaled:
        _gemm_of_weight(node, to, a, b)
    else:
        _gemm_of_products(node, to, a, b)


def _gemm_of_weight(node: OnnxNode, to: NodeBuilder, a: str, b: str) -> None:
    weight = b if node.attrs["transB"] else _transposed(node, to, b)
    if node.attrs["alpha"] != 1:
        value = to.constants[weight] * np.float32(node.attrs["alpha"])
        weight = to.constant(node, "weight", value)
    columns = to.shape(weight)[0]
    if not node.given(2) or node.attrs["beta"] == 0:
        to.emit(node, "Gemm", (a, weight))
        return
    bias = _bias(node, to, columns)
    if bias:
        to.emit(node, "Gemm", (a, weight, bias))
    else:
        _add_bias(node, to, to.emit(node, "Gemm", (a, weight), ()))


def _bias(node: OnnxNode, to: NodeBuilder, columns: int) -> str:
    """C as a vector with one element per column; "" if it differs from row to row or is computed."""
    name, beta = node.inputs[2], node.attrs["beta"]
    shape = to.shape(name)
    if shape == (columns,) and beta == 1:
        return name
    if name not in to.constants or shape not in ((), (1,), (columns,), (1, 1), (1, columns)):
        return ""
    value = to.constants[name].reshape(-1) * np.float32(beta)
    return to.constant(node, "bias", np.broadcast_to(value, (columns,)).copy())


def _add_bias(node: OnnxNode, to: NodeBuilder, product: str) -> None:
    bias = node.inputs[2]
    if node.attrs["beta"] != 1:
        beta = to.constant(node, "beta", np.float32(node.attrs["beta"]))
        bias = to.emit(node, "Mul", (bias, beta), ())
    shape = to.shape(product)
    to.emit(node, "Add", (product, bias))
    if to.shape(node.outputs[0]) != shape:
        raise node.bad(f"C of shape {list(to.shape(bias))} does not broadcast to {list(shape)}")


def _gemm_of_products(node: OnnxNode, to: NodeBuilder, a: str, b: str) -> None:
    if node.attrs["transB"]:
        b = to.emit(node, "Transpose", (b,), (), perm=(1, 0))
    biased = node.given(2) and node.attrs["beta"] != 0
    scaled = node.attrs["alpha"] != 1
    product = to.emit(node, "MatMul", (a, b), () if scaled or biased else None)
    if scaled:
        alpha = to.constant(node, "alpha", np.float32(node.attrs["alpha"]))
        product = to.emit(node, "Mul", (product, alpha), () if biased else None)
    if biased:
        _add_bias(node, to, product)


IMPORTERS: dict[str, Importer] = {"Gemm": _gemm, "MatMul": _matmul}
