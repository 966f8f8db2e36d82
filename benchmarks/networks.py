"""The networks of the benchmarks: trained ones beside the checkout where they are, else npuc's own builders.

    python benchmarks/networks.py FOLDER

writes into the folder what is not there yet and prints the networks as JSON. A process of its own, so that the
benchmark stays small: a child's peak memory starts at its parent's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared"
CALIBRATION_SAMPLES = 40

# name -> trained model, its calibration data, npuc's builder
KNOWN = {
    "ResNet-8": ("tiny_resnet8_fp32", "cifar20_resnet8", "resnet8"),
    "DS-CNN": ("tiny_kws_dscnn_fp32", "", "ds_cnn"),
    "MobileNetV1-0.25": ("tiny_vww_mbv1_fp32", "", "mobilenet_v1_025"),
}


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


def _prepared(name: str, folder: Path) -> Network:
    trained, task, builder = KNOWN[name]
    model, samples = SHARED / "models" / f"{trained}.onnx", SHARED / "tasks" / task / "calibration.npz"
    if model.is_file() and samples.is_file():
        return Network(name, f"{trained}, {task}", str(model), str(samples))
    origin = f"{trained}, synthetic data"
    if not model.is_file():
        model, origin = _built(builder, folder), f"npuc.models, {builder}, synthetic data"
    return Network(name, origin, str(model), str(_made_up(model, folder / f"{builder}.npz")))


def _built(builder: str, folder: Path) -> Path:
    import onnx

    from npuc.models import MODELS

    path = folder / f"{builder}.onnx"
    onnx.save(MODELS[builder](), path)
    return path


def _made_up(model: Path, path: Path) -> Path:
    """Standard normal samples for every input of a model."""
    from npuc.data import save, synthetic
    from npuc.driver import input_types
    from npuc.frontend import load

    save(path, synthetic(input_types(load(model)), CALIBRATION_SAMPLES).inputs)
    return path


if __name__ == "__main__":
    print(json.dumps([asdict(_prepared(name, Path(sys.argv[1]))) for name in KNOWN]))
