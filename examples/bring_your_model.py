"""Your own model on three targets: check, calibrate, compile, verify, inspect.

python examples/bring_your_model.py [MODEL.onnx SAMPLES.npz]
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import npuc

TARGETS = ("easynpu", "nvdla-small", "bm1684")


def small_model() -> onnx.ModelProto:
    """A model of two convolutions and a classifier with random weights, in place of your own."""
    rng = np.random.default_rng(1)
    weights = {
        "w1": rng.normal(0, 0.3, (8, 3, 3, 3)),
        "w2": rng.normal(0, 0.1, (16, 8, 3, 3)),
        "w3": rng.normal(0, 0.1, (10, 16)),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    """Compiles the model for every target and prints the results."""
    if len(sys.argv) == 3:
        model = sys.argv[1]
        with np.load(sys.argv[2]) as file:
            samples = dict(file)
    else:
        images = np.random.default_rng(2).uniform(0, 1, (64, 3, 16, 16)).astype(np.float32)
        model, samples = small_model(), {"image": images}
    for target in TARGETS:
        for problem in npuc.check(model, target=target):
            print(f"{target}: {problem}")
        program = npuc.compile(model, target=target, calibration=samples)
        found = npuc.verify(model, program, {name: value[:8] for name, value in samples.items()})
        first = program.listing()[0]["text"]
        print(
            f"{target}: {found['status']}, {program.report['cycles']} cycles modelled; first instruction: {first}"
        )
        program.save(Path(f"example-{target}.npu"), force=True)


if __name__ == "__main__":
    main()
