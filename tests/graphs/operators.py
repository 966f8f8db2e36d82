"""Draws one operator with attributes and operands at the borders of what passes and lowerings may touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from npuc.ir import Attr
from tests.graphs.drawing import Drawing, Shape

Draw = Callable[[Drawing], object]

UNARY: dict[str, dict[str, float]] = {
    "Relu": {}, "Abs": {}, "Neg": {}, "Sigmoid": {}, "Tanh": {}, "HardSwish": {}, "Mish": {}, "Softplus": {},
    "Softsign": {}, "Erf": {}, "Exp": {}, "Log": {}, "Sqrt": {}, "Reciprocal": {}, "Floor": {}, "Ceil": {},
    "Round": {}, "Identity": {}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}, "Elu": {"alpha": 0.7},
    "LeakyRelu": {"alpha": 0.2}, "Swish": {"alpha": 1.7},
}  # fmt: skip
BINARY = ("Add", "Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min")
LIMITS = (
    (0.0, 6.0), (0.0, 1.0), (-1.0, 1.0), (0.0, None), (None, 0.5), (None, 0.0), (-0.5, 2.0), (0.2, 0.9),
    (-2.0, -0.3),
)  # fmt: skip
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
REDUCTIONS = ("ReduceMean", "ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin")


def unary(net: Drawing) -> object:
    """A function of one element."""
    x = net.any()
    if x is None:
        return None
    if net.chance(0.25):
        return net.node("Relu", x)
    if net.chance(0.2):
        low, high = net.pick(LIMITS)
        limits = {key: value for key, value in (("min", low), ("max", high)) if value is not None}
        return net.node("Clip", x, **limits)
    if net.chance(0.1):
        return net.node("Gelu", x, approximate=net.pick(("none", "tanh")))
    op = net.pick(tuple(UNARY))
    attrs = dict(UNARY[op])
    if "alpha" in attrs and net.chance(0.4):
        attrs["alpha"] = net.pick((-0.3, 0.0, 1.0, 1.5, 1 / 6))
    if "beta" in attrs and net.chance(0.4):
        attrs["beta"] = 0.5
    return net.node(op, x, **attrs)


def vector_shapes(shape: Shape) -> list[Shape]:
    """Shapes of constants that broadcast with a tensor: scalars, vectors along any axis, whole tensors."""
    rank = len(shape)
    found: list[Shape] = [(), (1,), (1,) * rank, shape]
    for axis in range(rank):
        column = (1,) * axis + (shape[axis],) + (1,) * (rank - axis - 1)
        found += [column, column[axis:]]
    found += [shape[1:], (*shape[:2], *(1,) * (rank - 2)), (1, *shape[1:]), (*(1,) * (rank - 2), *shape[-2:])]
    return found


def binary(net: Drawing) -> object:
    """Two operands: another tensor, the same one, one of a smaller or larger shape, or a constant of any form."""
    x = net.any()
    if x is None:
        return None
    shape, op = net.shape(x), net.pick(BINARY)
    kind = net.number(0, 9)
    other: str | None
    if kind < 3:
        other = net.alike(shape, x)
    elif kind == 3:
        other = x
    elif kind == 4:
        other = net.any()
    elif kind == 5 and len(shape) > 1:
        keep = net.pick((1, 1, 2))
        axes = tuple(axis for axis in range(len(shape)) if axis >= keep or net.chance(0.3))
        other = net.node("ReduceMean", x, axes=axes, keepdims=1) if axes else None
    else:
        found = net.pick(vector_shapes(shape))
        if net.chance(0.07) and len(found) < 5:
            found = (net.number(1, 2), *shape)  # broadcasts the tensor
        low, high = (0.3, 2.0) if op == "Div" or net.chance(0.3) else (-1.5, 1.5)
        other = net.floats(found, low, high)
        if net.chance(0.15):
            other = net.constant(np.full(found, net.pick((0.0, 1.0, -1.0, 2.0, 6.0, 0.5)), np.float32))
    if other is None:
        return None
    return net.node(op, *((x, other) if net.chance(0.65) else (other, x)))


def slope(net: Drawing) -> object:
    """PRelu, whose slope has any form that broadcasts to the tensor."""
    x = net.any()
    if x is None:
        return None
    low, high = net.pick(((-0.5, 1.5), (0.0, 0.9), (0.1, 0.1)))
    return net.node("PRelu", x, net.floats(net.pick(vector_shapes(net.shape(x))), low, high))


def power(net: Drawing) -> object:
    """Pow by a small number."""
    x = net.any()
    return x and net.node("Pow", x, net.constant(np.array(net.pick((2.0, 3.0, 0.5, 1.0, -1.0)), np.float32)))


def window(net: Drawing, spatial: Shape, *, pool: bool) -> dict[str, Attr]:
    """Kernel, strides, dilations and pads; uneven pads and kernels as large as the map among them."""
    rank = len(spatial)
    kernel = tuple(min(net.pick((1, 2, 3, 3, 3, 4, 5, max(extent, 1))), extent + 2) for extent in spatial)
    stride, dilation = net.pick((1, 1, 1, 2, 2, 3)), net.pick((1, 1, 1, 1, 2, 3))
    strides = tuple(stride if net.chance(0.8) else net.number(1, 3) for _ in kernel)
    dilations = tuple(dilation if net.chance(0.8) else net.number(1, 2) for _ in kernel)
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    pads = [0] * (2 * rank)
    if net.chance(0.4):
        pads = [each // 2 for each in reach] * 2
    elif net.chance(0.5):
        pads = [net.number(0, each if pool else each + 1) for each in (*reach, *reach)]
    found: dict[str, Attr] = {"kernel_shape": kernel, "strides": strides, "pads": tuple(pads)}
    if dilation > 1 or net.chance(0.3):
        found["dilations"] = dilations
    if not net.chance(0.8):
        del found["strides"]
    return found


def _divisor(net: Drawing, number: int) -> int:
    return net.pick([each for each in range(1, number + 1) if number % each == 0])


def convolution(net: Drawing) -> object:
    """Conv over one to three dimensions: groups, depthwise, and the forms that passes recognise."""
    x = net.any((3, 4, 4, 5))
    if x is None:
        return None
    _, channels, *spatial = net.shape(x)
    if not channels:
        return None
    group = net.pick((1, 1, 1, channels, _divisor(net, channels)))
    outputs = group * net.number(1, max(1, 6 // group))
    attrs = window(net, tuple(spatial), pool=False)
    if net.chance(0.25):
        attrs = {"kernel_shape": (1,) * len(spatial)}
    w = net.weights((outputs, channels // group, *np.atleast_1d(attrs["kernel_shape"]).tolist()))
    bias = [net.floats((outputs,))] if net.chance(0.6) else []
    return net.node("Conv", x, w, *bias, group=group, **attrs)


def transposed_convolution(net: Drawing) -> object:
    """ConvTranspose with output padding, pads, groups and dilations."""
    x = net.any((3, 4, 4))
    if x is None:
        return None
    _, channels, *spatial = net.shape(x)
    if not channels:
        return None
    group = net.pick((1, 1, channels, _divisor(net, channels)))
    kernel = tuple(net.number(1, 4) for _ in spatial)
    strides = tuple(net.pick((1, 2, 2, 3)) for _ in spatial)
    pads = tuple(net.number(0, k - 1) for k in kernel * 2) if net.chance(0.4) else (0,) * 2 * len(kernel)
    more: dict[str, Attr] = {}
    if net.chance(0.25):
        more["output_padding"] = tuple(net.number(0, s - 1) for s in strides)
    if net.chance(0.15):
        more["dilations"] = tuple(net.number(1, 2) for _ in kernel)
    w = net.weights((channels, net.number(1, 4) if group < 3 else 1, *kernel))
    bias = [net.floats((net.shape(w)[1] * group,))] if net.chance(0.5) else []
    return net.node(
        "ConvTranspose", x, w, *bias, kernel_shape=kernel, strides=strides, pads=pads, group=group, **more
    )


def pool(net: Drawing) -> object:
    """Pooling with ceil_mode, counted padding and dilations; over the whole map."""
    x = net.any((3, 4, 4, 5))
    if x is None:
        return None
    spatial = net.shape(x)[2:]
    if net.chance(0.2):
        return net.node(net.pick(("GlobalAveragePool", "GlobalMaxPool")), x)
    op = net.pick(("MaxPool", "AveragePool"))
    attrs = window(net, spatial, pool=True)
    if net.chance(0.2):
        attrs = {"kernel_shape": spatial, "pads": tuple(net.number(0, 1) for _ in spatial * 2)}
    if op == "AveragePool" and net.chance(0.85):
        attrs.pop("dilations", None)
    if net.chance(0.3):
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and net.chance(0.5):
        attrs["count_include_pad"] = net.number(0, 1)
    return net.node(op, x, **attrs)


def normalisation(net: Drawing) -> object:
    """Batch normalisation in any rank; instance and local response normalisation."""
    x = net.any((2, 3, 4, 4, 5))
    if x is None:
        return None
    channels = net.shape(x)[1]
    scale, bias = net.floats((channels,), 0.3, 2), net.floats((channels,), -1, 1)
    if net.chance(0.1):
        return net.node("InstanceNormalization", x, scale, bias, epsilon=1e-3)
    if net.chance(0.1):
        return (
            None
            if len(net.shape(x)) != 4
            else net.node("LRN", x, size=net.pick((1, 3, 5)), alpha=net.pick((1e-4, 0.1)), beta=0.75, bias=1.0)
        )
    mean, variance = net.floats((channels,), -0.5, 0.5), net.floats((channels,), 0.3, 2)
    return net.node("BatchNormalization", x, scale, bias, mean, variance, epsilon=net.pick((1e-5, 1e-3)))


def product(net: Drawing) -> object:
    """Matrix products: Gemm, MatMul with constants on either side, and of two tensors."""
    x = net.any((2, 2, 3, 4))
    if x is None:
        return None
    *_, rows, columns = net.shape(x)
    kind = net.number(0, 4)
    if kind == 0 and len(net.shape(x)) == 2:
        outputs = net.number(1, 6)
        bias = [net.floats((outputs,))] if net.chance(0.6) else []
        return net.node("Gemm", x, net.weights((outputs, columns)), *bias)
    if kind == 1:
        return net.node("MatMul", net.weights((net.number(1, 5), rows)), x)
    if kind == 2:
        perm = (*range(len(net.shape(x)) - 2), len(net.shape(x)) - 1, len(net.shape(x)) - 2)
        turned = net.node("Transpose", x, perm=perm)
        return turned and net.node("MatMul", x, turned)
    result = net.node("MatMul", x, net.floats((columns, net.number(1, 5)), -0.7, 0.7))
    if result is not None and net.chance(0.6):
        shape = net.shape(result)
        bias = net.floats(net.pick((shape[-1:], (1, *shape[-1:]), (1,), shape, (*shape[:-1], 1))))
        return net.node("Add", *((result, bias) if net.chance(0.5) else (bias, result)))
    return result


def reduction(net: Drawing) -> object:
    """Reductions over any axes, kept or dropped."""
    x = net.any((2, 3, 4, 4, 5))
    if x is None:
        return None
    rank = len(net.shape(x))
    axes = net.pick((tuple(range(2, rank)) or (1,), (rank - 1,), (1,), (net.number(0, rank - 1),)))
    if net.chance(0.3):
        axes = tuple(axis for axis in range(rank) if net.chance(0.4)) or (rank - 1,)
    if net.chance(0.12):
        op = net.pick(("Softmax", "LogSoftmax"))
        return net.node(op, x, axis=net.pick((1, rank - 1, 0)))
    if net.chance(0.05):
        net.node("ArgMax", x, axis=axes[0], keepdims=net.number(0, 1))
    return net.node(net.pick(REDUCTIONS), x, axes=axes, keepdims=net.number(0, 1))


def transpose(net: Drawing) -> object:
    """A permutation: layouts of TensorFlow, swaps, and ones that move axis 0."""
    x = net.any((2, 3, 4, 4, 4, 5))
    if x is None:
        return None
    rank = len(net.shape(x))
    perm: Shape = tuple(int(axis) for axis in net.random.permutation(rank))
    if net.chance(0.6):
        perm = net.pick(
            ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1)), (0, *range(rank - 1, 0, -1)))
        )
    return net.node("Transpose", x, perm=perm)


def factors_of(net: Drawing, size: int) -> Shape:
    """A shape of rank 1 to 5 with so many elements."""
    shape: list[int] = []
    while size > 1 and len(shape) < 4 and net.chance(0.85):
        shape.append(_divisor(net, size))
        size //= shape[-1]
    shape.append(size)
    if net.chance(0.5):
        shape.insert(net.pick((0, 0, 1, len(shape))), 1)
    return tuple(shape[:6])


def reshape(net: Drawing) -> object:
    """Reshape: flattening, merging and dividing neighbours, extents of 1 added and dropped, or anything."""
    x = net.any()
    if x is None:
        return None
    shape = net.shape(x)
    rank = len(shape)
    at = net.number(0, rank)
    options: list[Shape] = [
        (*shape[:1], prod(shape[1:])),
        (*shape[:at], 1, *shape[at:]),
        factors_of(net, prod(shape)),
    ]
    options.append(tuple(extent for extent in shape if extent != 1) or (1,))
    if rank > 1:
        at = net.number(0, rank - 2)
        options += [(*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])] * 2
        options.append((*shape[:at], shape[at + 1], shape[at], *shape[at + 2 :]))
    if 0 < at < rank and shape[at] > 1:
        part = _divisor(net, shape[at])
        options += [(*shape[:at], part, shape[at] // part, *shape[at + 1 :])] * 2
    wanted = net.pick(options)
    return net.node("Reshape", x, shape=wanted) if prod(wanted) == prod(shape) else None


def concat(net: Drawing) -> object:
    """Concat along any axis, of the same tensor as well, and of constants."""
    x = net.any()
    if x is None:
        return None
    shape = net.shape(x)
    if not shape:
        return None
    axis = net.pick((min(1, len(shape) - 1), net.number(0, len(shape) - 1)))
    fitting = [
        name
        for name in net.computed
        if len(net.shape(name)) == len(shape)
        and net.types[name].dtype == net.types[x].dtype
        and all(a == b for at, (a, b) in enumerate(zip(net.shape(name), shape, strict=True)) if at != axis)
    ]
    given = [x, *(net.pick(fitting) for _ in range(net.number(1, 2)))]
    if net.chance(0.1):
        given.append(net.floats((*shape[:axis], net.number(1, 2), *shape[axis + 1 :])))
    return net.node("Concat", *(given if net.chance(0.5) else given[::-1]), axis=axis)


def split(net: Drawing) -> object:
    """Split into uneven parts; some may have no reader."""
    x = net.any()
    if x is None or not net.shape(x):
        return None
    shape = net.shape(x)
    axis = net.pick((min(1, len(shape) - 1), net.number(0, len(shape) - 1)))
    if shape[axis] < 2:
        return None
    first = net.number(1, shape[axis] - 1)
    return net.node("Split", x, outputs=2, axis=axis, split=(first, shape[axis] - first))


def cut(net: Drawing) -> object:
    """Slice along several axes, forwards and backwards, with steps."""
    x = net.any()
    if x is None or not net.shape(x):
        return None
    shape = net.shape(x)
    axes = tuple(axis for axis in range(len(shape)) if net.chance(0.4) and shape[axis]) or (len(shape) - 1,)
    parts: list[tuple[int, int, int]] = []
    for axis in axes:
        extent, step = shape[axis], net.pick((1, 1, 1, 2, 2, 3, -1, -1, -2))
        start = net.number(0, extent - 1) if net.chance(0.6) else (0 if step > 0 else extent - 1)
        if step > 0:
            parts.append((start, extent if net.chance(0.5) else net.number(start + 1, extent), step))
        else:
            parts.append((start, -1 if net.chance(0.6) else net.number(-1, start - 1), step))
    starts, ends, steps = zip(*parts, strict=True)
    return net.node("Slice", x, axes=axes, starts=starts, ends=ends, steps=steps)


def pad(net: Drawing) -> object:
    """Pad in every mode, of any axis, with negative pads and values other than zero."""
    x = net.any((2, 3, 4, 4, 5))
    if x is None:
        return None
    rank = len(net.shape(x))
    around = [net.pick((0, 0, 1, 1, 2, -1 if net.chance(0.2) else 0)) for _ in range(2 * rank)]
    if net.chance(0.75):
        for axis in (0, 1):
            around[axis] = around[axis + rank] = 0
    mode = net.pick(("constant", "constant", "constant", "edge", "reflect", "wrap"))
    value = {"value": net.pick((0.0, 0.0, 0.5, -2.0))} if mode == "constant" else {}
    return net.node("Pad", x, pads=tuple(around), mode=mode, **value)


def moved(net: Drawing) -> object:
    """Gather, Expand, DepthToSpace, SpaceToDepth."""
    x = net.any((2, 3, 4, 4, 5))
    if x is None:
        return None
    shape = net.shape(x)
    kind = net.number(0, 3)
    if kind == 0:
        axis = net.number(0, len(shape) - 1)
        if not shape[axis]:
            return None
        count = net.number(1, shape[axis] + 1)
        indices = net.random.integers(-shape[axis], shape[axis], count)
        if net.chance(0.5):
            indices = net.random.permutation(shape[axis])
        if net.chance(0.15):
            indices = np.array(net.number(0, shape[axis] - 1))
        return net.node("Gather", x, net.constant(indices.astype(np.int64)), axis=axis)
    if kind == 1:
        wider = tuple(net.number(2, 3) if extent == 1 and net.chance(0.6) else extent for extent in shape)
        return net.node("Expand", x, shape=wider)
    if kind == 2:
        return net.node("DepthToSpace", x, blocksize=2, mode=net.pick(("DCR", "CRD")))
    return net.node("SpaceToDepth", x, blocksize=2)


def resize(net: Drawing) -> object:
    """Resize in every mode, larger and smaller, of other axes than the last two as well."""
    x = net.any((3, 4, 4, 4, 5))
    if x is None:
        return None
    shape = net.shape(x)
    # onnxruntime has the others for images only
    mode = net.pick(("nearest", "nearest", "linear", "linear", "cubic") if len(shape) == 4 else ("nearest",))
    scales = tuple(
        net.pick((1, 2, 2, 3, 0.5, 1.5)) if axis > 1 or (mode == "nearest" and net.chance(0.1)) else 1.0
        for axis in range(len(shape))
    )
    sizes = tuple(int(np.floor(extent * scale)) for extent, scale in zip(shape, scales, strict=True))
    attrs: dict[str, Attr] = {
        "mode": mode,
        "coordinate_transformation_mode": net.pick(COORDINATES),
        "scales": tuple(map(float, scales)),
        "sizes": sizes,
    }
    if mode == "nearest":
        attrs["nearest_mode"] = net.pick(NEAREST)
    if mode == "cubic":
        attrs["cubic_coeff_a"] = -0.75
    if any(
        int(np.floor(np.float32(n) * np.float32(s))) != m for n, s, m in zip(shape, scales, sizes, strict=True)
    ):
        return None
    return net.node("Resize", x, **attrs) if min(sizes, default=0) > 0 else None


def quantised(net: Drawing) -> object:
    """QuantizeLinear and DequantizeLinear with odd zero points; something that moves integers between them."""
    x = net.any()
    if x is None:
        return None
    dtype = net.pick(("int8", "uint8"))
    limits = np.iinfo(dtype)
    # scales whose multiples are no round numbers: ties with the numbers that limits and constants are
    scale = net.constant(np.array(net.pick((0.0131, 0.0237, 0.0473, 0.0919)), np.float32))
    zero = net.constant(
        np.array(net.pick((0, 0, 3, -29, 128, 117, limits.max, limits.min)), np.int64)
        .clip(limits.min, limits.max)
        .astype(dtype)
    )
    steps = net.node("QuantizeLinear", x, scale, zero)
    if steps is None:
        return None
    shape = net.shape(steps)
    if net.chance(0.25) and len(shape) > 1:
        moved_steps = net.pick(
            (
                lambda: net.node(
                    "Transpose", steps, perm=tuple(int(a) for a in net.random.permutation(len(shape)))
                ),
                lambda: net.node("Reshape", steps, shape=(*shape[:1], prod(shape[1:]))),
                lambda: net.node("Concat", steps, steps, axis=1),
            )
        )()
        steps = moved_steps or steps
    if net.chance(0.15):
        scale = net.constant(np.array(0.0331, np.float32))
    return net.node("DequantizeLinear", steps, scale, zero)


def quantised_weights(net: Drawing) -> object:
    """A convolution whose weights are int8 with scales per channel."""
    x = net.any((4,))
    if x is None or not net.shape(x)[1]:
        return None
    channels, outputs = net.shape(x)[1], net.number(1, 4)
    steps = net.random.integers(-127, 128, (outputs, channels, 1, 1)).astype(np.int8)
    scales = (0.01 * net.random.uniform(0.5, 2, outputs)).astype(np.float32)
    if net.chance(0.5):
        w = net.node(
            "DequantizeLinear",
            net.constant(steps),
            net.constant(scales),
            net.constant(np.zeros(outputs, np.int8)),
            axis=0,
        )
    else:
        w = net.node(
            "DequantizeLinear",
            net.constant(steps),
            net.constant(scales[0]),
            net.constant(np.int8(net.pick((0, 5)))),
        )
    bias = [net.floats((outputs,))] if net.chance(0.5) else []
    return w and net.node("Conv", x, w, *bias, kernel_shape=(1, 1))


def rounded(net: Drawing, x: str) -> str | None:
    """The tensor rounded to 8 bits whose range holds it, as quantisers of models choose them, or most of it."""
    values = np.array([each[x] for each in net.values])
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    dtype = net.pick(("int8", "uint8"))
    limits = np.iinfo(dtype)
    scale = np.float32(max(high - low, 1e-2) * net.pick((1.0, 1.0, 0.7)) / 255 * 1.003)
    zero = np.clip(np.rint(limits.min - low / scale), limits.min, limits.max).astype(dtype)
    parameters = net.constant(np.array(scale)), net.constant(np.array(zero))
    steps = net.node("QuantizeLinear", x, *parameters)
    return steps and net.node("DequantizeLinear", steps, *parameters)


def quantised_layer(net: Drawing) -> object:
    """A layer as quantised models have it: rounded operands, and a rounded result."""
    x = net.any((3, 4, 4))
    x = x and rounded(net, x)
    if x is None:
        return None
    net.pick((quantised_weights, convolution, binary, pool, reshape, concat, unary, transpose, product))(net)
    result = net.any()
    return result and net.types[result].dtype == "float32" and rounded(net, result)


def constants_only(net: Drawing) -> object:
    """What depends on no input, so that it is folded."""
    x = net.any()
    if x is None:
        return None
    folded = net.node("Neg", net.floats(net.pick(vector_shapes(net.shape(x)))))
    return folded and net.node("Add", x, folded)


def cast(net: Drawing) -> object:
    """Whole numbers as integers and back."""
    x = net.any()
    whole = x and net.node("Floor", x)
    steps = whole and net.node("Cast", whole, to="int32")
    return steps and net.node("Cast", steps, to="float32")


def twins(net: Drawing) -> object:
    """The same computation twice."""
    x = net.any()
    if x is None:
        return None
    op = net.pick(("Tanh", "Relu", "Softsign"))
    first, second = net.node(op, x), net.node(op, x)
    return first and second and net.node("Add", first, second)


OPERATORS: Sequence[Draw] = (
    *[unary] * 6, *[binary] * 8, *[convolution] * 6, *[pool] * 4, *[transpose] * 4, *[reshape] * 4, *[concat] * 3,
    *[cut] * 2, *[pad] * 3, *[reduction] * 3, *[product] * 3, *[normalisation] * 3, *[moved] * 2, *[quantised] * 2,
    slope, slope, power, transposed_convolution, split, resize, resize, quantised_weights, constants_only, twins,
    cast, *[quantised_layer] * 3,
)  # fmt: skip
