"""Combinations of operators' attributes, by opset: the graph gives what onnxruntime gives, or is refused by name.

Forms that onnxruntime refuses are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx
import pytest

from npuc.errors import ModelError, NpucError
from npuc.frontend import import_model
from npuc.ops.interpreter import run
from npuc.reference import session
from tests.onnx_models import parse
from tests.runtime import RUNTIME

SOUND_REFUSALS = {"E105", "E106", "E201", "E202"}


@dataclass(frozen=True)
class Family:
    """Forms of an operator: a node with gaps, and what stands in each gap."""

    node: str
    opsets: Sequence[int]
    gaps: Mapping[str, Sequence[str]]
    constants: str = ""
    x: str = "1,3,6,7"

    def models(self) -> Iterator[tuple[str, onnx.ModelProto]]:
        """Every form and its model."""
        for opset, *chosen in product(self.opsets, *self.gaps.values()):
            node = self.node.format(**dict(zip(self.gaps, chosen, strict=True)))
            body = f"g (float[{self.x}] x) => (y) <{self.constants}> {{ y = {node} }}"
            yield f"{opset}: {node}", parse(body, opset)


COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
SIZES = ("x, r, s2", "x, r, s1", "x, r, s3", "x, r, , z1", "x, r, , z2", "x, r, , z3")
RESIZED = """float[8] r = {0,0,0.1,0.2,1,1,0.8,0.7}, float[4] s1 = {1,1,0.5,0.5}, float[4] s2 = {1,1,2,2},
    float[4] s3 = {1,1,1.7,0.6}, int64[4] z1 = {1,3,1,1}, int64[4] z2 = {1,3,6,4}, int64[4] z3 = {1,5,9,7}"""
WINDOWS = (
    "kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]",
    "kernel_shape = [2,3], strides = [3,2], pads = [0,1,1,0]",
    "kernel_shape = [3,3], strides = [2,2], pads = [0,0,2,2]",
    "kernel_shape = [2,2], strides = [3,3]",
    "kernel_shape = [4,4], strides = [3,3], pads = [3,3,3,3]",
    *(
        f'kernel_shape = [3,2], strides = [2,1], auto_pad = "{kind}"'
        for kind in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
)
DILATED = ("dilations = [2,2], pads = [1,1,1,1]", "dilations = [1,3], strides = [2,3]", "dilations = [2,1]")
FLAGS = ("0", "1")
FAMILIES = {
    "Softmax": Family(
        "{op} <axis = {axis}> (x)", (11, 13), {"op": ("Softmax", "LogSoftmax"), "axis": ("-1", "0", "1", "2")}
    ),
    "Resize": Family(
        'Resize <mode = "{mode}", coordinate_transformation_mode = "{at}", extrapolation_value = 1.5> ({size})',
        (11, 19),
        {"mode": ("nearest", "linear", "cubic"), "at": COORDINATES, "size": SIZES},
        RESIZED,
    ),
    "nearest Resize": Family(
        'Resize <nearest_mode = "{nearest}", coordinate_transformation_mode = "{at}"> ({size})',
        (13,),
        {"nearest": ("round_prefer_ceil", "floor", "ceil"), "at": COORDINATES, "size": SIZES[1:4]},
        RESIZED,
    ),
    "antialiased Resize": Family(
        'Resize <antialias = 1, mode = "{mode}", exclude_outside = {out}, '
        'coordinate_transformation_mode = "{at}"> ({size})',
        (18,),
        {"mode": ("linear", "cubic"), "out": FLAGS, "at": COORDINATES, "size": SIZES},
        RESIZED,
    ),
    "Resize of axes": Family(
        'Resize <axes = {axes}, keep_aspect_ratio_policy = "{policy}", mode = "linear"> (x, , , z)',
        (18,),
        {"axes": ("[2,3]", "[3,2]", "[-1,-2]"), "policy": ("stretch", "not_larger", "not_smaller")},
        "int64[2] z = {9,4}",
    ),
    "AveragePool": Family(
        "AveragePool <{window}, ceil_mode = {ceil}, count_include_pad = {counted}> (x)",
        (10, 11, 19, 22),
        {"window": WINDOWS, "ceil": FLAGS, "counted": FLAGS},
    ),
    "MaxPool": Family(
        "MaxPool <{window}, ceil_mode = {ceil}> (x)", (10, 12, 22), {"window": WINDOWS, "ceil": FLAGS}
    ),
    "dilated AveragePool": Family(
        "AveragePool <kernel_shape = [2,2], {window}, ceil_mode = {ceil}, count_include_pad = {counted}> (x)",
        (19, 22),
        {"window": DILATED, "ceil": FLAGS, "counted": FLAGS},
    ),
    "dilated MaxPool": Family(
        "MaxPool <kernel_shape = [2,2], {window}, ceil_mode = {ceil}> (x)",
        (10, 22),
        {"window": DILATED, "ceil": FLAGS},
    ),
    "ConvTranspose": Family(
        "ConvTranspose <strides = [2,2], {more}> (x, w)",
        (7, 11),
        {
            "more": (
                "pads = [1,1,1,1]",
                "output_padding = [1,0]",
                "dilations = [2,2]",
                "pads = [1,0,0,1], output_padding = [1,1]",
                "output_shape = [13,14]",
                "output_shape = [12,14]",
                'output_shape = [12,14], auto_pad = "SAME_UPPER"',
                'auto_pad = "SAME_UPPER"',
                'auto_pad = "SAME_LOWER"',
                'auto_pad = "VALID"',
            )
        },
        f"float[3,2,3,3] w = {{{','.join(str(each / 10) for each in range(-20, 34))}}}",
    ),
    "Gemm": Family(
        "Gemm <alpha = {alpha}, beta = {beta}, transA = 1> (x, w, {c})",
        (7, 13),
        {"alpha": ("1.0", "0.5"), "beta": ("1.0", "0.0", "-2.0"), "c": ("c0", "c1", "c2", "c3", "c4")},
        """float[4,2] w = {1,2,3,4,5,6,7,8}, float c0 = {3}, float[2] c1 = {1,2}, float[3,1] c2 = {1,2,3},
        float[3,2] c3 = {1,2,3,4,5,6}, float[1,2] c4 = {7,8}""",
        x="4,3",
    ),
    "reductions": Family(
        "{op} <keepdims = {keep}, noop_with_empty_axes = {none}> (x{axes})",
        (18,),
        {
            "op": ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
            "keep": FLAGS,
            "none": FLAGS,
            "axes": ("", ", a", ", b"),
        },
        "int64[2] a = {-1,1}, int64[0] b = {}",
    ),
    "Pad": Family(
        'Pad <mode = "{mode}"> (x, {pads}, v)',
        (13, 19),
        {"mode": ("constant", "reflect", "edge", "wrap"), "pads": ("a", "b", "c")},
        """int64[8] a = {0,0,1,2,0,0,3,0}, int64[8] b = {0,1,0,0,0,0,0,1}, int64[8] c = {0,0,-1,2,0,0,1,-2},
        float v = {1.5}""",
    ),
    "Slice": Family(
        "Slice (x, {start}, {end}, axis, {step})",
        (10, 13),
        {
            "start": ("zero", "low", "high", "most", "before"),
            "end": ("zero", "low", "high", "least"),
            "step": ("one", "minus", "two"),
        },
        """int64[1] zero = {0}, int64[1] low = {1}, int64[1] high = {-1}, int64[1] most = {9223372036854775807},
        int64[1] least = {-9223372036854775807}, int64[1] before = {-9}, int64[1] axis = {-2}, int64[1] one = {1},
        int64[1] minus = {-2}, int64[1] two = {3}""",
    ),
}


FIRST_RIGHT = {"AveragePool": (1, 29), "reductions": (1, 24), "Resize of axes": (1, 24)}
"""The first version of onnxruntime that computes every form of a family right; older ones may even crash."""


@pytest.mark.parametrize("name", FAMILIES)
def test_every_form_gives_what_onnxruntime_gives_or_is_refused(name: str) -> None:
    if FIRST_RIGHT.get(name, RUNTIME) > RUNTIME:
        pytest.skip("this onnxruntime computes some forms wrong")
    wrong: list[str] = []
    compared = 0
    for form, model in FAMILIES[name].models():
        shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
        feed = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32) + np.float32(0.3)}
        try:
            wanted = session(model, few_runs=True).run(None, feed)[0]
        except ModelError:
            continue
        except Exception:  # onnxruntime raises many unrelated types
            continue
        try:
            found = run(import_model(model), feed)["y"]
        except NpucError as error:
            wrong += [f"{form}: {each}" for each in error.problems if each.code not in SOUND_REFUSALS]
            continue
        compared += 1
        room = 1e-4 * np.abs(wanted).max(initial=0) + 1e-6
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-4, atol=room):
            wrong.append(form)
    assert not wrong
    assert compared
