"""Modelled cycles on nvdla-small of networks whose cycles are known from the RTL (facts on NVDLA)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from npuc.ir import Array
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "nvdla.md").read_text("utf-8")
LIMITS = {  # clocks at 8 bytes a clock on the nv_small RTL, of an earlier program or one by hand; what is allowed
    "resnet8": (228569, 227500),
    "resnet8 without adds": (210987, 211000),
    "lenet5": (22802, 23300),
    "lenet caffe": (112207, 114500),
    "three convolutions": (112998, 112998),
}
HALF = {"resnet8": (231989, 229000), "lenet5": (30478, 30900), "lenet caffe": (157085, 159000)}
"""The same where memory takes a request every other clock."""


class _Chain:
    """Layers one after the other."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.last = "x"

    def add(
        self, op: str, *shape: int, name: str = "", source: str = "", others: str = "", **attrs: object
    ) -> str:
        """A node on the last result, with weights of a shape."""
        name, source = name or f"{op}{len(self.nodes)}", source or self.last
        if shape:
            self.constants[f"{name}_w"] = weights(*shape)
            others = f"{name}_w"
        self.nodes.append(node(op, f"{source} {others}", name, **attrs))
        self.last = name
        return name

    def conv(self, *shape: int, relu: bool = True, source: str = "", stride: int = 1, pad: int = 0) -> str:
        """A convolution, and ReLU."""
        found = self.add("Conv", *shape, source=source, strides=[stride] * 2, pads=[pad] * 4)
        return self.add("Relu") if relu else found

    def dense(self, *shape: int, relu: bool = True) -> None:
        """A fully connected layer (outputs, inputs)."""
        self.add("Gemm", *shape, transB=1)
        if relu:
            self.add("Relu")

    def model(self, *shape: int) -> onnx.ModelProto:
        """The network with its result named y."""
        self.nodes[-1].output[0] = "y"
        return network(self.nodes, shape, self.constants)


def _resnet8(*, adds: bool) -> onnx.ModelProto:
    chain = _Chain()
    x = chain.conv(16, 3, 3, 3, pad=1)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        before = {16: 16, 32: 16, 64: 32}[channels]
        chain.conv(channels, before, 3, 3, stride=stride, pad=1)
        chain.conv(channels, channels, 3, 3, pad=1, relu=not adds)
        if adds:
            main = chain.last
            short = chain.conv(channels, before, 1, 1, source=x, stride=stride, relu=False) if stride > 1 else x
            chain.add("Add", source=main, others=short)
            chain.add("Relu")
        x = chain.last
    chain.add("GlobalAveragePool")
    chain.add("Flatten")
    chain.dense(10, 64, relu=False)
    return chain.model(1, 3, 32, 32)


def _lenet5() -> onnx.ModelProto:
    chain = _Chain()
    chain.conv(6, 1, 5, 5)
    chain.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    chain.conv(16, 6, 5, 5)
    chain.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    chain.add("Flatten")
    chain.dense(120, 400)
    chain.dense(84, 120)
    chain.dense(10, 84, relu=False)
    return chain.model(1, 1, 32, 32)


def _lenet_caffe() -> onnx.ModelProto:
    chain = _Chain()
    chain.conv(20, 1, 5, 5, relu=False)
    chain.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    chain.conv(50, 20, 5, 5, relu=False)
    chain.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    chain.add("Flatten")
    chain.dense(500, 800)
    chain.dense(10, 500, relu=False)
    return chain.model(1, 1, 28, 28)


def _three_convolutions() -> onnx.ModelProto:
    chain = _Chain()
    for _ in range(3):
        chain.conv(16, 16, 3, 3, pad=1)
    return chain.model(1, 16, 32, 32)


MODELS = {
    "resnet8": lambda: _resnet8(adds=True),
    "resnet8 without adds": lambda: _resnet8(adds=False),
    "lenet5": _lenet5,
    "lenet caffe": _lenet_caffe,
    "three convolutions": _three_convolutions,
}
MACS = {"resnet8": 195338, "resnet8 without adds": 191242, "lenet5": 6508, "lenet caffe": 35828}


@pytest.mark.parametrize("name", LIMITS)
def test_a_network_takes_about_what_the_best_schedule_took_on_the_rtl(name: str, tmp_path: Path) -> None:
    report = _report(name, tmp_path)
    macs = MACS.get(name, 110592)
    assert macs <= report["macs"] // 64 < 1.001 * macs  # the last convolution is one over blocks of the average
    clocks, most = LIMITS[name]
    assert 0.95 * clocks < report["cycles"] <= most  # less than that the RTL would not believe
    assert name == "resnet8 without adds" or f"| {report['cycles']:,} |" in PAGE


@pytest.mark.parametrize("name", HALF)
def test_memory_that_a_machine_file_states_slower_takes_what_it_took_on_the_rtl(name: str, tmp_path: Path) -> None:
    machine = tmp_path / "tree.toml"
    machine.write_text("bytes_per_clock = 4\n")
    clocks, most = HALF[name]
    cycles = _report(name, tmp_path, str(machine))["cycles"]
    assert 0.95 * clocks < cycles <= most and f"| {cycles:,} |" in PAGE


def _report(name: str, folder: Path, machine: str | None = None) -> dict[str, Any]:
    return compiled(MODELS[name](), folder, machine=machine)[2].manifest["report"]
