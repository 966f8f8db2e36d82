"""Maps of one pixel and of one column, which SDP takes as packed: programs in which that matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npuc.targets.nvdla.model import sdp_rdma
from npuc.targets.nvdla.model.memory import Pattern
from tests.nvdla.networks import expect_exact, verified
from tests.onnx_models import network, node, weights

CONFIGURATIONS = (("nvdla-small", "int8"), ("nvdla-full", "int8"), ("nvdla-full", "int16"))
STARTS = {name: np.array([value], np.int64) for name, value in {"zero": 0, "one": 1, "two": 2, "axis": 2}.items()}
HALVES = [node("Relu", "x", "r"), node("Slice", "r zero one axis", "a"), node("Slice", "r one two axis", "b")]


def networks() -> dict[str, onnx.ModelProto]:
    """Each computes or moves maps of one pixel whose channels fill several atoms of nv_small and of nv_full."""
    found = {
        "transposed convolution": network(
            [node("ConvTranspose", "x w", "y", strides=[2, 2])], (1, 16, 1, 1), {"w": weights(16, 72, 2, 2)}
        ),
        "transposed convolution of a column": network(
            [node("ConvTranspose", "x w", "y", strides=[2, 2])], (1, 16, 7, 1), {"w": weights(16, 72, 2, 2)}
        ),
        "depth to space": network(
            [node("Relu", "x", "r"), node("DepthToSpace", "r", "y", blocksize=2)], (1, 288, 1, 1)
        ),
        "concatenation": network(
            [node("Conv", "x v", "a"), node("Conv", "x w", "b"), node("Concat", "a b", "y", axis=2)],
            (1, 8, 3, 3),
            {"v": weights(72, 8, 3, 3), "w": -weights(72, 8, 3, 3)},
        ),
        "addition of halves": network([*HALVES, node("Add", "a b", "y")], (1, 72, 2, 1), STARTS),
        "convolution and addition": network(
            [*HALVES, node("Conv", "a w", "c"), node("Add", "c b", "y")],
            (1, 72, 2, 1),
            {**STARTS, "w": weights(72, 72, 1, 1)},
        ),
        "operands per channel": network(
            [*HALVES, node("PRelu", "a s", "y")], (1, 72, 2, 1), {**STARTS, "s": weights(72, 1, 1)}
        ),
        "a column in tiles": network(
            [node("Conv", "x w", "c", pads=[1, 0, 1, 0]), node("Add", "c x", "y")],
            (1, 72, 9, 1),
            {"w": weights(72, 72, 3, 1)},
        ),
    }
    enlarged = network([node("Relu", "x", "r"), node("Resize", "r _ _", "y", mode="nearest")], (1, 72, 1, 1))
    enlarged.graph.initializer.append(numpy_helper.from_array(np.float32([1, 1, 2, 2]), "scales"))
    enlarged.graph.node[1].input[:] = ["r", "", "scales"]
    return {**found, "enlargement": enlarged}


NETWORKS = networks()


@pytest.mark.parametrize(("name", "precision"), CONFIGURATIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_with_maps_of_one_pixel_is_bit_exact(
    network: str, name: str, precision: str, tmp_path: Path
) -> None:
    expect_exact(verified(NETWORKS[network], tmp_path, name, samples=2, precision=precision))


def test_a_cube_of_one_pixel_has_no_strides() -> None:
    assert sdp_rdma.packed(Pattern(64, 8, 1, 512, 3, 1024), 8).size == 3 * 8
    assert sdp_rdma.packed(Pattern(64, 8, 2, 512, 3, 1024), 8).size == 2 * 1024 + 512 + 8
