"""Layers whose weights, or whose batch, exceed local memory: computed in pieces, against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from npuc.target import Options, Request
from npuc.targets.bm1684.simulate.running import Runner
from npuc.targets.bm1684.target import BM1684
from tests.bm1684.kernels import need_compiler, vendor_libraries
from tests.compiled import optimised
from tests.onnx_models import network

Layer = tuple[str, list[str], Mapping[str, Any]]
Shapes = dict[str, tuple[int, ...]]

# layers one after another: operator, operands (x the input, w.. weights, others results by number), attributes;
# shapes of x and of the weights; bytes of local memory, less than the weights (or the batch) need in each NPU
CONV: Mapping[str, Any] = {"pads": [1, 1, 1, 1]}
PADDED: Mapping[str, Any] = {"pads": [3, 3, 3, 3]}
CASES: dict[str, tuple[list[Layer], Shapes, int]] = {
    # 8 block rows of 64 * 9 * 4 = 2304 bytes
    "output channels of an input of the network": (
        [("Conv", ["x", "w", "b"], CONV)],
        {"x": (1, 64, 16, 16), "w": (512, 64, 3, 3), "b": (512,)},
        24576,
    ),
    "output channels, every image of a batch": (
        [("Relu", ["x"], {}), ("Conv", ["0", "w", "b"], CONV), ("Relu", ["1"], {})],
        {"x": (3, 64, 4, 4), "w": (300, 64, 3, 3), "b": (300,)},
        10240,
    ),
    # one block row: 256 * 49 * 4 = 50,176 bytes
    "input channels": (
        [("Relu", ["x"], {}), ("Conv", ["0", "w", "b"], PADDED), ("Relu", ["1"], {})],
        {"x": (2, 256, 6, 5), "w": (70, 256, 7, 7), "b": (70,)},
        32768,
    ),
    "input channels onto a residual": (
        [
            ("Conv", ["x", "v"], {}),
            ("Relu", ["x"], {}),
            ("Conv", ["1", "w", "b"], PADDED),
            ("Add", ["0", "2"], {}),
            ("Relu", ["3"], {}),
        ],
        {"x": (1, 101, 6, 5), "v": (70, 101, 1, 1), "w": (70, 101, 7, 7), "b": (70,)},
        16384,
    ),
    # 8 block rows of 49 * 4 = 196 bytes
    "depthwise": (
        [("Relu", ["x"], {}), ("Conv", ["0", "w", "b"], {**PADDED, "group": 500}), ("Relu", ["1"], {})],
        {"x": (1, 500, 4, 4), "w": (500, 1, 7, 7), "b": (500,)},
        3072,
    ),
    # all groups as one for a batch, zeros between: 8 block rows of 128 * 9 * 4 bytes
    "groups": ([("Conv", ["x", "w"], {**CONV, "group": 2})], {"x": (2, 128, 6, 6), "w": (512, 64, 3, 3)}, 16384),
    # 512 rows of 128 bytes
    "rows of a matrix": (
        [("Gemm", ["x", "w", "b"], {}), ("Relu", ["0"], {})],
        {"x": (5, 500), "w": (500, 256), "b": (256,)},
        32768,
    ),
    # a channel of the flattened image is 1024 rows of 128 bytes
    "part of a channel of a flattened image": (
        [("Relu", ["x"], {}), ("Flatten", ["0"], {}), ("Gemm", ["1", "w", "b"], {})],
        {"x": (1, 3, 32, 32), "w": (3072, 128), "b": (128,)},
        32768,
    ),
    # a row of all images: 64 * 128 bytes
    "images of a batch": (
        [("Conv", ["x", "w"], CONV), ("Relu", ["0"], {}), ("MaxPool", ["1"], {"kernel_shape": [2, 2]})],
        {"x": (50, 10, 6, 6), "w": (20, 10, 3, 3)},
        8192,
    ),
    # an image of 40 rows * 40 * 4 bytes does not fit either
    "rows of the images of a batch": (
        [("Conv", ["x", "w"], CONV), ("Relu", ["0"], {})],
        {"x": (12, 4, 40, 40), "w": (4, 4, 3, 3)},
        6144,
    ),
}


def _save(layers: list[Layer], shapes: Shapes, path: Path) -> None:
    draw = np.random.default_rng(0).standard_normal
    held = {name: draw(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items() if name != "x"}
    nodes = [helper.make_node(op, reads, [str(at)], **attrs) for at, (op, reads, attrs) in enumerate(layers)]
    model = network(nodes, shapes["x"], held, str(len(layers) - 1))
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def _check(layers: list[Layer], shapes: Shapes, folder: Path, machine: str | None, chip_model: str) -> None:
    """Compares with onnxruntime."""
    path = folder / "model.onnx"
    _save(layers, shapes, path)
    options = Options(machine=machine, precision="fp32")
    graph = optimised(Request(path, BM1684, options))
    program = BM1684.lower(graph, {}, options)
    x = np.random.default_rng(1).standard_normal(shapes["x"]).astype(np.float32)
    found = next(iter(Runner(program, chip_model)({"x": x[np.newaxis]}).values()))[0]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", CASES)
def test_what_exceeds_local_memory_is_computed_in_pieces(name: str, tmp_path: Path) -> None:
    need_compiler()
    layers, shapes, local_bytes = CASES[name]
    machine = tmp_path / "small.toml"
    machine.write_text(f"local_bytes = {local_bytes}\n", encoding="ascii")
    _check(layers, shapes, tmp_path, str(machine), "own")


# bytes of weights in each NPU: 32 * 512 * 36, 3000 * 196, 2500 * 256, each more than 524,288
REAL: dict[str, tuple[list[Layer], Shapes]] = {
    "a batch": ([("Conv", ["x", "w"], CONV)], {"x": (2, 512, 3, 3), "w": (2048, 512, 3, 3)}),
    "input channels": ([("Conv", ["x", "w"], PADDED)], {"x": (1, 3000, 2, 2), "w": (3, 3000, 7, 7)}),
    "a matrix": ([("Gemm", ["x", "w"], {})], {"x": (3, 2500), "w": (2500, 3000)}),
}


@pytest.mark.parametrize("name", REAL)
def test_pieces_run_on_the_vendor_s_chip_model(name: str, tmp_path: Path) -> None:
    vendor_libraries()
    _check(*REAL[name], tmp_path, None, "vendor")
