"""The networks of the benchmarks: trained ones if they are beside the checkout, else npuc's own builders.

    python benchmarks/networks.py FOLDER

writes missing networks to the folder and prints all as JSON;

    python benchmarks/networks.py FILE NAME

writes a light model of the onnx package with random weights, or a network of DRAWN and samples for it. These run
as separate processes to keep the benchmark small, since a child's peak memory starts at its parent's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

SHARED = Path(__file__).resolve().parents[2] / "shared"
CALIBRATION_SAMPLES = 40

# name -> trained model, its calibration data, npuc's builder
KNOWN = {
    "ResNet-8": ("tiny_resnet8_fp32", "cifar20_resnet8", "resnet8"),
    "DS-CNN": ("tiny_kws_dscnn_fp32", "", "ds_cnn"),
    "MobileNetV1-0.25": ("tiny_vww_mbv1_fp32", "", "mobilenet_v1_025"),
}


DRAWN = ("EfficientNet-Lite0", "face network")
"""Networks of these shapes with random weights, for inputs of 3 x 224 x 224 and 3 x 48 x 48."""


@dataclass(frozen=True)
class Network:
    """A model file and calibration samples for it."""

    name: str
    origin: str
    model: str
    samples: str


def networks(folder: str) -> list[Network]:
    """The networks, prepared by another process."""
    printed = subprocess.run([sys.executable, __file__, folder], stdout=subprocess.PIPE, check=True).stdout
    return [Network(**entry) for entry in json.loads(printed)]


def light(name: str, folder: Path) -> Path:
    """One of the onnx package's light models with normal weights in place of its ConstantOfShape.

    Vectors (biases, statistics) are between 0.5 and 1.5. Logits are outputs, too: Softmax makes them one-hot.
    """
    path = folder / f"{name}.onnx"
    subprocess.run([sys.executable, __file__, str(path), name], check=True)
    return path


def draw(name: str, folder: Path) -> Network:
    """A network of DRAWN, with 40 standard normal samples."""
    stem = name.lower().replace(" ", "_")
    model, samples = folder / f"{stem}.onnx", folder / f"{stem}.npz"
    subprocess.run([sys.executable, __file__, str(model), name], check=True)
    return Network(name, "random weights and samples", str(model), str(samples))


def select(wanted: Sequence[str], folder: Path) -> list[Network]:
    """ResNet-8 and the networks of DRAWN; only those of these names, if any are given."""
    known = [each for each in networks(str(folder)) if each.name == "ResNet-8"]
    known += [draw(each, folder) for each in DRAWN]
    return [each for each in known if not wanted or each.name in wanted]


EFFICIENTNET_BLOCKS = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""EfficientNet-Lite0: expansion, channels, repetitions, stride of the first, kernel."""


def efficientnet_lite0() -> onnx.ModelProto:
    """EfficientNet-Lite0 for 3 x 224 x 224."""
    from npuc.models.builder import NetworkBuilder

    net = NetworkBuilder("efficientnet_lite0", seed=0)

    def conv(x: str, channels: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        return net.conv(x, channels, kernel, stride=stride, pads=(kernel // 2,) * 4, group=group)

    x, channels = net.relu6(conv(net.input((1, 3, 224, 224), "x"), 32, 3, stride=2)), 32
    for expansion, width, count, stride, kernel in EFFICIENTNET_BLOCKS:
        for at in range(count):
            y, inner = x, channels * expansion
            if expansion > 1:
                y = net.relu6(conv(y, inner, 1))
            y = net.relu6(conv(y, inner, kernel, stride=1 if at else stride, group=inner))
            y = conv(y, width, 1)
            x, channels = net.add(x, y) if at else y, width
    x = net.global_average_pool(net.relu6(conv(x, 1280, 1)))
    return net.finish(net.gemm(net.flatten(x), 1000))


def face_network() -> onnx.ModelProto:
    """A face network of the shape of MTCNN's last stage, for 3 x 48 x 48: scores, a box, and landmarks."""
    from npuc.models.builder import NetworkBuilder

    net = NetworkBuilder("face_network", seed=0)
    x = net.input((1, 3, 48, 48), "x")
    for channels, kernel, pool in ((32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0)):
        x = net.relu(net.conv(x, channels, kernel, pads="valid"))
        if pool:
            x = net.pool("MaxPool", x, pool, stride=2)
    x = net.relu(net.gemm(net.flatten(x), 256))
    scores = net.node("Softmax", [net.gemm(x, 2)], (1, 2), axis=1)
    return net.finish(scores, net.gemm(x, 4), net.gemm(x, 10))


def _draw(name: str, path: Path) -> None:
    import numpy as np
    import onnx

    extent, build = (224, efficientnet_lite0) if name == DRAWN[0] else (48, face_network)
    onnx.save(build(), path)
    samples = np.random.default_rng(0).normal(0, 1, (CALIBRATION_SAMPLES, 1, 3, extent, extent))
    np.savez(path.with_suffix(".npz"), x=samples.astype(np.float32))


def _fill(name: str, path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    package = Path(onnx.__file__).parent
    model = onnx.load(package / "backend" / "test" / "data" / "light" / f"light_{name}.onnx")
    random = np.random.default_rng(0)
    shapes = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        shape = tuple(int(extent) for extent in shapes[node.input[0]])
        deviation = (2 / max(1, int(np.prod(shape[1:])))) ** 0.5
        values = random.normal(0, deviation, shape) if len(shape) > 1 else random.uniform(0.5, 1.5, shape)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
        model.graph.node.remove(node)
    logits = [node.input[0] for node in model.graph.node[-1:] if node.op_type == "Softmax"]
    model.graph.output.extend(onnx.ValueInfoProto(name=each) for each in logits)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def _prepare(name: str, folder: Path) -> Network:
    trained, task, builder = KNOWN[name]
    model, samples = SHARED / "models" / f"{trained}.onnx", SHARED / "tasks" / task / "calibration.npz"
    if model.is_file() and samples.is_file():
        return Network(name, f"{trained}, {task}", str(model), str(samples))
    origin = f"{trained}, synthetic data"
    if not model.is_file():
        model, origin = _build(builder, folder), f"npuc.models, {builder}, synthetic data"
    return Network(name, origin, str(model), str(_made_up(model, folder / f"{builder}.npz")))


def _build(builder: str, folder: Path) -> Path:
    import onnx

    from npuc.models import MODELS

    path = folder / f"{builder}.onnx"
    onnx.save(MODELS[builder](), path)
    return path


def _made_up(model: Path, path: Path) -> Path:
    """Standard normal samples for every input of a model."""
    from npuc.frontend import load
    from npuc.running import input_types
    from npuc.samples.loading import save, synthetic

    save(path, synthetic(input_types(load(model)), CALIBRATION_SAMPLES).inputs)
    return path


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if len(sys.argv) > 2:
        (_draw if sys.argv[2] in DRAWN else _fill)(sys.argv[2], Path(sys.argv[1]))
    else:
        print(json.dumps([asdict(_prepare(name, Path(sys.argv[1]))) for name in KNOWN]))
