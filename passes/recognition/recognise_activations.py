"""Recognises activations, Softmax and LogSoftmax that a model writes as several nodes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isclose, pi, sqrt

from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION, AXES, HARD_ALPHA, HARD_BETA, KEEPDIMS, MAX, MIN
from npuc.passes.rewriting.patterns import affine, factors, only_float, polynomial, scalar
from npuc.passes.rewriting.rules import Rewriter, rewrite

TOLERANCE = 1e-4
"""Relative tolerance. Models write 1/6, sqrt(2) and 0.044715 with four to nine digits."""


def recognise_activations(graph: Graph) -> Graph:
    """Finds Relu, Clip, LeakyRelu, PRelu, Sigmoid, Softplus, Swish, HardSigmoid, HardSwish, Gelu and Mish.

    The operands of sums and products may be in either order, factors and divisors anywhere in the product. Nothing
    is replaced if a result inside the pattern is read outside or is a graph output. It must run before products
    with constants are transformed.
    """
    return rewrite(
        graph, _limit, merge_limits, _leaky_relu, _prelu, _sigmoid, _softplus, _hard_sigmoid, _recognise_gate
    )


def _becomes(rewriter: Rewriter, node: Node, op: str, x: str, **attrs: Attr) -> bool:
    """Replaces the node by one operator of x; refuses if the shape or type would change."""
    if rewriter.types[x] != rewriter.types[node.output] or not only_float(rewriter, x):
        return False
    pattern = _between(rewriter, node, x)
    rewriter.replace(node, Node(op, (x,), (node.output,), attrs, node.name, rewriter.sources(*pattern)))
    return True


def _between(rewriter: Rewriter, node: Node, x: str) -> list[Node]:
    """The node and the preceding nodes that only it uses, up to x."""
    found, waiting = [node], list(node.inputs)
    while waiting:
        name = waiting.pop()
        producer = rewriter.private(name) if name != x else None
        if producer is not None and producer not in found:
            found.append(producer)
            waiting.extend(producer.inputs)
    return found


def _is_near(value: float, wanted: float) -> bool:
    return isclose(value, wanted, rel_tol=TOLERANCE)


# limits


def _limits(node: Node | None) -> tuple[float, float] | None:
    if node is None or node.op not in ("Relu", "Clip"):
        return None
    return (0.0, inf) if node.op == "Relu" else (MIN(node), MAX(node))


def _limit(rewriter: Rewriter, node: Node) -> bool:
    """Max or Min with a number, and Clip to 0..inf, as the operators meant for them."""
    if node.op == "Clip" and _limits(node) == (0.0, inf):
        return _become_clip(rewriter, node, node.inputs[0], 0.0, inf)
    if node.op not in ("Max", "Min") or ACTIVATION(node):
        return False
    for x, y in (node.inputs, node.inputs[::-1]):
        number = scalar(rewriter, y)
        if number is not None:
            low, high = (number, inf) if node.op == "Max" else (-inf, number)
            return _become_clip(rewriter, node, x, low, high)
    return False


def _become_clip(rewriter: Rewriter, node: Node, x: str, low: float, high: float) -> bool:
    if (low, high) == (0.0, inf):
        return _becomes(rewriter, node, "Relu", x)
    return _becomes(rewriter, node, "Clip", x, min=low, max=high)


def merge_limits(rewriter: Rewriter, node: Node) -> bool:
    """Clip or Relu of Clip or Relu becomes one."""
    outer = _limits(node)
    inner_node = rewriter.private(node.inputs[0]) if outer else None
    inner = _limits(inner_node)
    if outer is None or inner_node is None or inner is None:
        return False
    low, high = (min(max(limit, outer[0]), outer[1]) for limit in inner)
    return _become_clip(rewriter, node, inner_node.inputs[0], low, high)


# functions of x below and above zero


def _leaky_relu(rewriter: Rewriter, node: Node) -> bool:
    """max(x, a * x) with 0 < a < 1."""
    if node.op != "Max" or ACTIVATION(node):
        return False
    for x, y in (node.inputs, node.inputs[::-1]):
        found = polynomial(rewriter, y, x)
        slope = found[1] if found is not None and set(found) == {1} else 1.0
        if 0 < slope < 1:
            return _becomes(rewriter, node, "LeakyRelu", x, alpha=slope)
    return False


def _prelu(rewriter: Rewriter, node: Node) -> bool:
    """relu(x) + c * relu(-x), or the difference of both, with any constant c."""
    if node.op not in ("Add", "Sub") or ACTIVATION(node):
        return False
    pairs = (node.inputs, node.inputs[::-1]) if node.op == "Add" else (node.inputs,)
    for positive, negative in pairs:
        relu, product = rewriter.private(positive), rewriter.private(negative)
        if relu is None or relu.op != "Relu" or product is None or product.op != "Mul":
            continue
        x = relu.inputs[0]
        for mirrored, factor in (product.inputs, product.inputs[::-1]):
            if factor in rewriter.constants and _is_negated_relu(rewriter, mirrored, x):
                return _becomes_prelu(rewriter, node, x, factor)
    return False


def _is_negated_relu(rewriter: Rewriter, tensor: str, x: str) -> bool:
    relu = rewriter.private(tensor)
    return relu is not None and relu.op == "Relu" and polynomial(rewriter, relu.inputs[0], x) == {1: -1.0}


def _becomes_prelu(rewriter: Rewriter, node: Node, x: str, factor: str) -> bool:
    value = rewriter.constants[factor]
    fits = value.ndim <= len(rewriter.shape(x)) and rewriter.types[x] == rewriter.types[node.output]
    if not fits or not only_float(rewriter, x, factor):
        return False
    if value.size == 1:
        slope = float(value.reshape(())[()]) * (-1 if node.op == "Add" else 1)
        return _becomes(rewriter, node, "LeakyRelu", x, alpha=slope)
    sources = rewriter.sources(*_between(rewriter, node, x))
    slopes = factor if node.op == "Sub" else rewriter.constant(-value, f"{node.output}/slope")
    rewriter.replace(node, Node("PRelu", (x, slopes), (node.output,), {}, node.name, sources))
    return True


# functions written with exp


def _of_exp(rewriter: Rewriter, tensor: str) -> tuple[str, float] | None:
    """x and a, for a tensor 1 + exp(a * x) inside the pattern."""
    outer = affine(rewriter, tensor)
    node = rewriter.private(outer.tensor)
    if not rewriter.private(tensor) or node is None or node.op != "Exp" or (outer.scale, outer.offset) != (1, 1):
        return None
    inner = affine(rewriter, node.inputs[0])
    shared = inner.tensor != node.inputs[0] and not rewriter.private(node.inputs[0])
    return (inner.tensor, inner.scale) if inner.offset == 0 and not shared else None


def _sigmoid(rewriter: Rewriter, node: Node) -> bool:
    """1 / (1 + exp(-x))."""
    if node.op == "Reciprocal" or (node.op == "Div" and scalar(rewriter, node.inputs[0]) == 1):
        found = _of_exp(rewriter, node.inputs[-1])
        return found is not None and found[1] == -1 and _becomes(rewriter, node, "Sigmoid", found[0])
    return False


def _softplus(rewriter: Rewriter, node: Node) -> bool:
    """log(1 + exp(x))."""
    found = _of_exp(rewriter, node.inputs[0]) if node.op == "Log" else None
    return found is not None and found[1] == 1 and _becomes(rewriter, node, "Softplus", found[0])


def _hard_sigmoid(rewriter: Rewriter, node: Node) -> bool:
    """clip(a * x + b, 0, c) / c with b / c = 1/2, as in all common definitions.

    Other limited sums stay as they are: a convolution before them can absorb sum and limit.
    """
    if node.op not in ("Clip", "Mul", "Div"):
        return False
    outer = affine(rewriter, node.output)
    clip = rewriter.producer(outer.tensor)
    limits = _limits(clip)
    if clip is None or limits is None or outer.offset != 0 or limits[0] != 0 or limits[1] <= 0:
        return False
    if clip is not node and rewriter.private(outer.tensor) is None:
        return False
    inner = affine(rewriter, clip.inputs[0])
    alpha, beta = outer.scale * inner.scale, outer.scale * inner.offset
    if not _is_near(outer.scale * limits[1], 1) or not _is_near(beta, 0.5) or not rewriter.private(clip.inputs[0]):
        return False
    return _becomes(rewriter, node, "HardSigmoid", inner.tensor, alpha=alpha, beta=beta)


# x times a function of x

Gate = Callable[[Rewriter, Node, str, float, float], tuple[str, dict[str, Attr]] | None]
"""From the function's node, x, a and b: the operator for x * (a * node + b), with its attributes."""


def _recognise_gate(rewriter: Rewriter, node: Node) -> bool:
    """Swish, HardSwish, Gelu and Mish: c * x * (a * f(x) + b)."""
    if node.op not in ("Mul", "Div"):
        return False
    scale, operands = factors(rewriter, node.output)
    if len(operands) != 2:
        return False
    for x, gate in (operands, operands[::-1]):
        outer = affine(rewriter, gate)
        function = rewriter.private(outer.tensor)
        if function is None or rewriter.private(gate) is None or function.op not in _GATES:
            continue
        found = _GATES[function.op](rewriter, function, x, scale * outer.scale, scale * outer.offset)
        if found is not None and _becomes(rewriter, node, found[0], x, **found[1]):
            return True
    return False


def _swish(rewriter: Rewriter, sigmoid: Node, x: str, a: float, b: float) -> tuple[str, dict[str, Attr]] | None:
    inner = polynomial(rewriter, sigmoid.inputs[0], x)
    if inner is None or set(inner) != {1} or not _is_near(a, 1) or b != 0:
        return None
    return "Swish", {"alpha": inner[1]}


def _hard_swish(rewriter: Rewriter, gate: Node, x: str, a: float, b: float) -> tuple[str, dict[str, Attr]] | None:
    if gate.op == "HardSigmoid":
        limit, inner = 1.0, {1: HARD_ALPHA(gate), 0: HARD_BETA(gate)}
        fits = gate.inputs[0] == x
    else:
        low, limit = MIN(gate), MAX(gate)
        inner = polynomial(rewriter, gate.inputs[0], x)
        fits = low == 0
    if not fits or inner is None or set(inner) != {0, 1} or b != 0:
        return None
    exact = _is_near(a * limit, 1) and _is_near(a * inner[1], 1 / 6) and _is_near(a * inner[0], 0.5)
    return ("HardSwish", {}) if exact else None


def _gelu(rewriter: Rewriter, erf: Node, x: str, a: float, b: float) -> tuple[str, dict[str, Attr]] | None:
    inner = polynomial(rewriter, erf.inputs[0], x)
    if inner is None or set(inner) != {1} or not _is_near(inner[1], sqrt(0.5)):
        return None
    return ("Gelu", {"approximate": "none"}) if _is_near(a, 0.5) and _is_near(b, 0.5) else None


def _gelu_tanh_or_mish(
    rewriter: Rewriter, tanh: Node, x: str, a: float, b: float
) -> tuple[str, dict[str, Attr]] | None:
    softplus = rewriter.private(tanh.inputs[0])
    if softplus is not None and softplus.op == "Softplus":
        return ("Mish", {}) if softplus.inputs[0] == x and _is_near(a, 1) and b == 0 else None
    inner = polynomial(rewriter, tanh.inputs[0], x)
    if inner is None or not _is_near(a, 0.5) or not _is_near(b, 0.5):
        return None
    inner = {power: c for power, c in inner.items() if c}
    cube = sqrt(2 / pi) * 0.044715
    if set(inner) != {1, 3} or not _is_near(inner[1], sqrt(2 / pi)) or not _is_near(inner[3], cube):
        return None
    return "Gelu", {"approximate": "tanh"}


_GATES: dict[str, Gate] = {
    "Sigmoid": _swish,
    "HardSigmoid": _hard_swish,
    "Clip": _hard_swish,
    "Erf": _gelu,
    "Tanh": _gelu_tanh_or_mish,
}


def recognise_softmax(graph: Graph) -> Graph:
    """exp(x) / sum(exp(x)) along one axis, and x - log(sum(exp(x))), possibly after subtracting the maximum.

    Nothing is replaced if a result inside the pattern is read outside or is a graph output.
    """
    return rewrite(graph, _softmax, _log_softmax)


def _softmax(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Div" or ACTIVATION(node):
        return False
    powers, total = rewriter.producer(node.inputs[0]), rewriter.private(node.inputs[1])
    if powers is None or powers.op != "Exp" or total is None or total.inputs[0] != powers.output:
        return False
    axis = _axis(total, "ReduceSum")
    if axis is None or not _serves(rewriter, powers, total, node):
        return False
    found = _less_maximum(rewriter, powers.inputs[0], axis, powers)
    return _becomes_softmax(rewriter, "Softmax", axis, found, node, total, powers)


def _log_softmax(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Sub" or ACTIVATION(node):
        return False
    logarithm = rewriter.private(node.inputs[1])
    total = rewriter.private(logarithm.inputs[0]) if logarithm is not None and logarithm.op == "Log" else None
    powers = rewriter.private(total.inputs[0]) if total is not None else None
    if logarithm is None or total is None or powers is None or powers.op != "Exp":
        return False
    axis = _axis(total, "ReduceSum")
    if axis is None or powers.inputs[0] != node.inputs[0]:
        return False
    found = _less_maximum(rewriter, node.inputs[0], axis, powers, node)
    return _becomes_softmax(rewriter, "LogSoftmax", axis, found, node, logarithm, total, powers)


def _axis(node: Node, op: str) -> int | None:
    """The single axis of a reduction that keeps its dimensions."""
    axes = AXES(node) if node.op == op and KEEPDIMS(node) else ()
    return axes[0] if len(axes) == 1 else None


def _less_maximum(rewriter: Rewriter, tensor: str, axis: int, *readers: Node) -> tuple[str, tuple[Node, ...]]:
    """x and the nodes in between, if the tensor is x minus its maximum for just these readers; else the tensor."""
    shifted = rewriter.producer(tensor)
    if shifted is None or shifted.op != "Sub" or ACTIVATION(shifted) or not _serves(rewriter, shifted, *readers):
        return tensor, ()
    largest = rewriter.private(shifted.inputs[1])
    if largest is None or largest.inputs[0] != shifted.inputs[0] or _axis(largest, "ReduceMax") != axis:
        return tensor, ()
    return shifted.inputs[0], (shifted, largest)


def _serves(rewriter: Rewriter, node: Node, *readers: Node) -> bool:
    """Whether exactly these nodes read the result of a node."""
    found = {each.output for each in rewriter.readers(node.output)}
    return node.output not in rewriter.outputs and found == {each.output for each in readers}


def _becomes_softmax(
    rewriter: Rewriter, op: str, axis: int, x: tuple[str, tuple[Node, ...]], *pattern: Node
) -> bool:
    """Replaces the first node of a pattern by one operator on x; refuses if the shape or type would change."""
    (node, *_), (tensor, before) = pattern, x
    if rewriter.types[tensor] != rewriter.types[node.output] or not only_float(rewriter, tensor):
        return False
    sources = rewriter.sources(*pattern, *before)
    rewriter.replace(node, Node(op, (tensor,), (node.output,), {"axis": axis}, node.name, sources))
    return True
