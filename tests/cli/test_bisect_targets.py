"""`npuc verify --bisect` on every target: one flipped bit of a layer's weights is found in that layer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.cli.process import Outcome, npuc

TARGETS = ("easynpu", "nvdla-small", "nvdla-full", "bm1684")
NETWORK = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,12,12] x) => (float[1,6] y) {
    [stem] a = Conv<pads=[1,1,1,1]>(x, w0, b0)
    ar = Relu(a)
    [depthwise] b = Conv<pads=[1,1,1,1], group=16>(ar, w1, b1)
    br = Relu(b)
    [pointwise] c = Conv(br, w2, b2)
    cr = Relu(c)
    p = GlobalAveragePool(cr)
    f = Flatten(p)
    [classifier] y = Gemm<transB=1>(f, w3, b3)
}"""
SHAPES = {"stem": (16, 3, 3, 3), "depthwise": (16, 1, 3, 3), "pointwise": (32, 16, 1, 1), "classifier": (6, 32)}
SAMPLES = 4


@dataclass(frozen=True)
class Net:
    """The network on disk, samples for it, its weights by node, and its programs by target."""

    model: Path
    data: Path
    weights: dict[str, Any]
    folder: Path

    def program(self, target: str) -> Path:
        """Compiled at the first call."""
        path = self.folder / f"{target}.npu"
        if not path.exists():
            npuc("compile", self.model, "--target", target, "--calibration", self.data, "-o", path, "-q").done()
        return path

    def bisected(self, program: Path, folder: Path) -> Outcome:
        """The outcome of the search."""
        options = ("--allow-modified", "--bisect", "-o", folder, "--json")
        return npuc("verify", self.model, program, "--data", self.data, *options)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    folder, random = tmp_path_factory.mktemp("net"), np.random.default_rng(0)
    model = parser.parse_model(NETWORK)
    weights: dict[str, Any] = {}
    for number, (node, shape) in enumerate(SHAPES.items()):
        weights[node] = random.uniform(0.1, 1, shape).astype(np.float32)  # so that no channel is always zero
        bias = np.ones(shape[0], np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights[node], f"w{number}"))
        model.graph.initializer.append(numpy_helper.from_array(bias, f"b{number}"))
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "x.npz", x=random.standard_normal((SAMPLES, 3, 12, 12)).astype(np.float32))
    return Net(folder / "net.onnx", folder / "x.npz", weights, folder)


def _held(program: Path, image: str, node: str) -> Iterator[int]:
    """The addresses of bytes of a layer's weights that are not zero, as `npuc dump --image` shows them."""
    for row in npuc("dump", program, "--image", image, "--json").json["rows"]:
        if row["what"] and "weights of" in row["what"] and node in row["nodes"]:
            yield from (row["address"] + at for at, byte in enumerate(bytes.fromhex(row["hex"])) if byte)


def _flip(program: Path, image: str, at: int) -> None:
    data = bytearray((program / image).read_bytes())
    data[at] ^= 0x80
    (program / image).write_bytes(data)


def _names(outcome: Outcome, program: Path, node: str) -> None:
    """The layer and the instruction that were found are the node's, and a reproduction was written."""
    found = outcome.json["bisect"]
    assert found["kind"] == "difference" and node in found["nodes"] and found["expected"] != found["found"]
    listing = npuc("dump", program, "--allow-modified", "--json").json["instructions"]
    (entry,) = [each for each in listing if each["index"] == found["origin"]["instruction"]]
    assert node in entry["nodes"] and entry["text"] == found["origin"]["text"]
    folder = Path(found["folder"])
    assert node in {each.name for each in onnx.load(folder / "layer.onnx").graph.node}
    assert {each.name for each in folder.iterdir()} == {"layer.onnx", "input.npz", "sample.npz", "reproduce.sh"}


@pytest.mark.parametrize("node", SHAPES)
@pytest.mark.parametrize("target", [each for each in TARGETS if each != "bm1684"])
def test_a_flipped_bit_is_found_in_its_layer(net: Net, tmp_path: Path, target: str, node: str) -> None:
    program = shutil.copytree(net.program(target), tmp_path / "copy.npu")
    image = "weight.bin" if target == "easynpu" else "weights.bin"
    _flip(program, image, next(_held(program, image, node)))
    outcome = net.bisected(program, tmp_path / "found")
    assert outcome.code == 1 and outcome.json["bit_exact"] is False
    _names(outcome, program, node)


@pytest.mark.parametrize(("node", "byte"), [("stem", 3), ("depthwise", 1), ("pointwise", 0), ("classifier", 2)])
def test_a_flipped_bit_of_a_float_is_found_in_its_layer(net: Net, tmp_path: Path, node: str, byte: int) -> None:
    """Byte 0 has the least bits of the mantissa: a change that is lost in what rounding does to the layer."""
    program = shutil.copytree(net.program("bm1684"), tmp_path / "copy.npu")
    value = net.weights[node].ravel()[1].tobytes()  # the values stand in the image as they are in the model
    image = (program / "weights.bin").read_bytes()
    assert image.count(value) == 1
    _flip(program, "weights.bin", image.index(value) + byte)
    outcome = net.bisected(program, tmp_path / "found")
    assert outcome.json["bit_exact"] is None
    _names(outcome, program, node)


def test_a_program_of_another_npuc_is_compared_with_onnxruntime(net: Net, tmp_path: Path) -> None:
    """Its instructions are not those that the model compiles to now: only rounding may explain its layers."""
    program = shutil.copytree(net.program("bm1684"), tmp_path / "copy.npu")
    manifest = json.loads((program / "manifest.json").read_text())
    manifest["instructions"][0]["cycles"] += 1
    (program / "manifest.json").write_text(json.dumps(manifest))
    sound = net.bisected(program, tmp_path / "sound")
    assert sound.code == 0 and sound.json["bisect"]["kind"] == "loss"
    value = net.weights["pointwise"].ravel()[1].tobytes()
    _flip(program, "weights.bin", (program / "weights.bin").read_bytes().index(value) + 3)
    _names(net.bisected(program, tmp_path / "found"), program, "pointwise")


def test_layers_of_a_float_program_are_compared_alone(net: Net) -> None:
    report = npuc("verify", net.model, net.program("bm1684"), "--data", net.data, "--json").json
    shown = [layer for layer in report["layers"] if layer["single"] is not None]
    assert {"Conv", "Gemm"} <= {layer["op"] for layer in shown}
    assert all(layer["single"]["exact"] or layer["single"]["sqnr_db"] > 110 for layer in shown)
