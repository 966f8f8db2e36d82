"""Pictures and a small network that reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from npuc.ir import Array

SIZE = 12
NAMES = ("red", "green", "blue", "grey")


def photos(folder: Path, count: int = 8) -> Path:
    """Smooth colour pictures of several sizes and formats, the same in every run."""
    random, folder = np.random.default_rng(3), folder / "photos"
    folder.mkdir()
    for at in range(count):
        blobs = random.integers(0, 256, (3, 4, 3)).astype(np.uint8)
        width, height = (int(each) for each in random.integers(SIZE, 3 * SIZE, 2))
        image = Image.fromarray(blobs).resize((width, height), Image.Resampling.BICUBIC)
        image.save(folder / f"{at}{('.png', '.jpg', '.bmp', '.webp')[at % 4]}")
    return folder


def network(
    folder: Path,
    shape: tuple[int, ...] = (1, 3, SIZE, SIZE),
    pad: int = 1,
    opset: int = 17,
    name: str = "net.onnx",
) -> Path:
    """A classifier of four classes: a convolution over the picture, with this padding, ReLU, a mean, a Gemm."""
    random = np.random.default_rng(7)
    channels, last = (shape[1], False) if shape[1] < SIZE else (shape[3], True)
    weights = {
        "w": random.normal(0, 0.3, (6, channels, 3, 3)),
        "b": random.normal(0, 0.1, 6),
        "f": random.normal(0, 1, (4, 6)),
        "g": np.zeros(4),
    }
    nodes = [
        *([helper.make_node("Transpose", ["x"], ["t"], "t", perm=[0, 3, 1, 2])] if last else []),
        helper.make_node("Conv", ["t" if last else "x", "w", "b"], ["c"], "conv", pads=[pad] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["m"], "mean"),
        helper.make_node("Flatten", ["m"], ["v"], "flat"),
        helper.make_node("Gemm", ["v", "f", "g"], ["y"], "gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [shape[0], 4])],
        [numpy_helper.from_array(each.astype(np.float32), key) for key, each in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, folder / name)
    return folder / name


def maps(folder: Path, pad: int) -> Path:
    """Maps of eight classes: the network's first convolution and ReLU, a depthwise one, one of single taps."""
    model, random = onnx.load(network(folder, pad=pad)), np.random.default_rng(3)
    graph = model.graph
    del graph.node[2:], graph.initializer[2:]
    for name, shape in (("d", (6, 1, 3, 3)), ("e", (8, 6, 1, 1))):
        weights = random.normal(0, 0.5, shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(weights, name))
    graph.node.append(helper.make_node("Conv", ["r", "d"], ["s"], "depthwise", group=6, pads=[1] * 4))
    graph.node.append(helper.make_node("Conv", ["s", "e"], ["y"], "classes"))
    graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "maps.onnx")
    return folder / "maps.onnx"


def saved(path: Path, pixels: Array, **options: object) -> Path:
    """A picture file of these pixels."""
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)  # pyright: ignore
    return path
