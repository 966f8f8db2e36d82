"""Operators on tiles, and what they are merged into: the same values by onnx.reference, or no merging at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npuc.ir import Array
from npuc.targets.easynpu.simulate.merging import Extents, Merging, Operator

EXTENTS: dict[str, Extents] = {"x": (4, 6, 6), "v": (4, 1, 1), "z": (4, 6, 6), "tall": (4, 8, 6)}
RANDOM = np.random.default_rng(0)
CONSTANTS: dict[str, Array] = {
    "0": np.array([0]), "2": np.array([2]), "3": np.array([3]), "4": np.array([4]), "6": np.array([6]),
    "7": np.array([7]), "channels": np.array([1]), "rows": np.array([2]), "columns": np.array([3]),
    "place": RANDOM.normal(size=(1, 4, 3, 6)).astype(np.float32),
    "w": RANDOM.normal(size=(4, 4, 3, 3)).astype(np.float32),
    "u": RANDOM.normal(size=(4, 4, 3, 3)).astype(np.float32),
    "d": RANDOM.normal(size=(4, 1, 3, 3)).astype(np.float32),
    "bias": RANDOM.normal(size=4).astype(np.float32),
    "e": RANDOM.normal(size=(4, 2, 3, 3)).astype(np.float32),
    "f2": RANDOM.normal(size=(4, 2, 3, 3)).astype(np.float32),
    "d2": RANDOM.normal(size=(4, 1, 3, 3)).astype(np.float32),
    "two": RANDOM.normal(size=(2, 1, 1)).astype(np.float32),
    "other_two": RANDOM.normal(size=(2, 1, 1)).astype(np.float32),
}  # fmt: skip

CONSTANTS["ones"] = np.ones((4, 1, 1), np.int32)
CONSTANTS["least"] = CONSTANTS["ones"].view(np.float32)
CONSTANTS["row"] = CONSTANTS["w"][:, :, :1]
CONSTANTS["column"] = CONSTANTS["row"].reshape(4, 4, 3, 1)
CONSTANTS["some"] = np.concatenate([CONSTANTS["w"][2:], CONSTANTS["u"][:1]])
CONSTANTS["some_bias"] = CONSTANTS["bias"][[2, 3, 0]]


def of(op: str, inputs: str, output: str, **attributes: Any) -> Operator:
    return Operator(op, tuple(inputs.split()), output, attributes)


HALVES = [of("Slice", "x 0 3 rows", "a"), of("Slice", "x 3 6 rows", "b")]
JOINED = of("Concat", "c d_", "y", axis=2)
BESIDE = of("Concat", "c d_", "y", axis=1)


def conv(x: str, w: str, y: str, pads: tuple[int, ...] = (0, 0, 0, 0), group: int = 1) -> Operator:
    return of("Conv", f"{x} {w} bias", y, pads=pads, strides=(1, 1), dilations=(1, 1), group=group)


GIVEN = {
    "tiles and a channel's number": [*HALVES, of("Mul", "a v", "c"), of("Mul", "b v", "d_"), JOINED],
    "a channel's number and tiles": [*HALVES, of("Mul", "v a", "c"), of("Mul", "v b", "d_"), JOINED],
    "channels of a map that ends beside those of one that goes on": [
        of("Slice", "tall 0 7 rows", "a"),
        conv("x", "d", "c", (1, 1, 1, 1), group=4), conv("a", "d", "d_", (1, 1, 0, 1), group=4), BESIDE,
    ],
    "tiles of maps": [
        *HALVES, of("Slice", "z 0 3 rows", "e_"), of("Slice", "z 3 6 rows", "f"),
        of("Add", "a e_", "c"), of("Add", "b f", "d_"), JOINED,
    ],
    "constants that vary from place to place": [
        *HALVES, of("Add", "a place", "c"), of("Add", "b place", "d_"), JOINED
    ],
    "some channels of one convolution beside another": [
        conv("x", "w", "k"), of("Slice", "k 0 2 channels", "c"), conv("x", "u", "d_"), BESIDE
    ],
    "convolutions of other maps beside each other": [conv("x", "w", "c"), conv("z", "u", "d_"), BESIDE],
    "depthwise convolutions beside each other": [
        conv("x", "d", "c", group=4), conv("z", "d", "d_", group=4), BESIDE
    ],
    "convolutions in groups of two beside each other": [
        conv("x", "e", "c", group=2), conv("z", "e", "d_", group=2), BESIDE
    ],
    "convolutions in groups of two of one map": [
        conv("x", "e", "c", group=2), conv("x", "f2", "d_", group=2), BESIDE
    ],
    "depthwise convolutions of one map with other weights": [
        conv("x", "d", "c", group=4), conv("x", "d2", "d_", group=4), BESIDE
    ],
    "weights of the same bytes and another shape": [
        of("Slice", "x 0 4 rows", "a"), conv("a", "row", "c"),
        of("Slice", "x 0 4 columns", "b"), conv("b", "column", "d_"), BESIDE
    ],
    "numbers of the same bytes and another type": [
        of("Cast", "x", "i", to=TensorProto.INT32), of("Mul", "i ones", "j"),
        of("Cast", "j", "c", to=TensorProto.FLOAT), of("Mul", "x least", "d_"), BESIDE,
    ],
    "weights of which some are those of another convolution": [
        conv("x", "w", "c"), of("Conv", "x some some_bias", "s", strides=(1, 1), dilations=(1, 1), group=1),
        of("Slice", "c 2 4 channels", "k"), of("Slice", "s 0 2 channels", "l"),
        of("Add", "k l", "m"), of("Concat", "m s", "y", axis=1),
    ],
    "channels of a concatenation across its parts": [
        conv("x", "w", "c"), conv("z", "u", "d_"), of("Concat", "c d_", "k", axis=1),
        of("Slice", "k 2 6 channels", "l"), of("Relu", "l", "y"),
    ],
    "channels of a concatenation within a part": [
        conv("x", "w", "c"), conv("z", "u", "d_"), of("Concat", "c d_", "k", axis=1),
        of("Slice", "k 4 7 channels", "l"), of("Relu", "l", "y"),
    ],
    "some channels with their own numbers": [
        of("Slice", "x 0 2 channels", "a"), of("Slice", "x 2 4 channels", "b"),
        of("Mul", "a two", "c"), of("Mul", "b other_two", "d_"), of("Mul", "a other_two", "e_"),
        of("Concat", "c d_ e_", "y", axis=1),
    ],
    "a padded maximum": [of("MaxPool", "x", "y", kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))],
    "padded convolutions on halves": [
        *HALVES, conv("a", "w", "c", (1, 1, 1, 1)), conv("b", "w", "d_", (1, 1, 1, 1)), JOINED
    ],
    "a Softmax of channels": [of("Softmax", "x", "y", axis=1)],
}  # fmt: skip


def evaluated(operators: list[Operator], constants: Mapping[str, Array]) -> Array:
    """The output, by the definitions of the operators."""
    nodes = [
        helper.make_node(each.op, each.inputs, [each.output], domain=each.domain, **each.attributes)
        for each in operators
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, *EXTENTS[name])) for name in EXTENTS]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "g", ports, [result], held), opset_imports=[helper.make_opsetid("", 17)]
    )
    feeds = {name: np.random.default_rng(len(name)).normal(size=(1, *EXTENTS[name])) for name in EXTENTS}
    feeds["z"] = feeds["z"] + 1
    found: Any = ReferenceEvaluator(model).run(
        None, {name: value.astype(np.float32) for name, value in feeds.items()}
    )
    return found[0]


@pytest.mark.parametrize("name", GIVEN)
def test_merged_operators_compute_the_same_or_are_not_merged(name: str) -> None:
    operators, constants = [*GIVEN[name], of("Identity", "y", "result")], dict(CONSTANTS)

    def constant(value: Array) -> str:
        added = f"k{len(constants)}"
        constants[added] = value
        return added

    wanted = evaluated(operators, constants)
    merged = Merging(EXTENTS, constants, constant).merged(operators)
    if merged is not None:
        np.testing.assert_allclose(evaluated(merged, constants), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("tiles of maps", ["Add", "Identity"]),
        (
            "weights of which some are those of another convolution",
            ["Conv", "Slice", "Add", "Slice", "Concat", "Identity"],
        ),
        ("channels of a concatenation within a part", ["Conv", "Slice", "Relu", "Identity"]),
    ],
)
def test_what_is_computed_alike_is_one_operator(name: str, operators: list[str]) -> None:
    constants = dict(CONSTANTS)

    def constant(value: Array) -> str:
        constants[added := f"k{len(constants)}"] = value
        return added

    merged = Merging(EXTENTS, constants, constant).merged([*GIVEN[name], of("Identity", "y", "result")])
    assert merged is not None and [each.op for each in merged] == operators
