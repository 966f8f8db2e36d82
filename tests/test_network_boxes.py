"""What the report's network shows of a program whose middle the host runs."""

from __future__ import annotations

from typing import Any

from npuc.page.boxes import boxes_of
from npuc.page.network import drawing
from npuc.program import Program

STEPS = [
    {"kind": "host", "op": "QuantizeLinear", "conversion": True, "inputs": ["x"], "outputs": ["x/int8"]},
    {"kind": "npu", "path": "npu/part_0", "inputs": ["x"], "outputs": ["a"]},
    {"kind": "host", "path": "host/region_0.onnx", "inputs": ["a"], "outputs": ["h"]},
    {"kind": "npu", "path": "npu/part_1", "inputs": ["h", "a"], "outputs": ["b"]},
    # as BM1684 writes them: its steps are all the host's
    {"op": "Softmax", "node": "sm", "reason": "no exponential", "inputs": ["b"], "outputs": ["y"]},
]
PARTS = [
    {"path": "npu/part_0", "place": "npu", "nodes": ["A"], "reasons": []},
    {
        "path": "host/region_0.onnx",
        "place": "host",
        "nodes": ["H"],
        "reasons": [{"op": "Sin", "reason": "<none>"}],
    },
    {"path": "npu/part_1", "place": "npu", "nodes": ["B"], "reasons": []},
]
LAYERS: list[dict[str, Any]] = [
    {"name": "a", "op": "conv", "nodes": ["A"], "cycles": 30, "bytes": 8, "sqnr_db": None},
    {"name": "b", "op": "conv", "nodes": ["B"], "cycles": 60, "bytes": 2, "sqnr_db": None},
]
GRAPH = {
    "tensors": {
        "part_0/a/int8": {"float": "a", "shape": [1, 4], "scale": 0.5, "zero_point": 3},
        "part_1/h/int8": {"float": "h", "shape": [1, 4], "scale": 0.5},
        "part_1/a/int8": {"float": "a", "shape": [1, 4], "scale": 0.5},
        "part_1/b/int8": {"float": "b", "shape": [1, 4], "scale": 0.5},
    },
    "layers": [
        {"op": "IntConv", "nodes": ["A"], "inputs": ["part_0/x/int8"], "tensor": "part_0/a/int8"},
        {"op": "IntAdd", "nodes": ["B"], "inputs": ["part_1/h/int8", "part_1/a/int8"], "tensor": "part_1/b/int8"},
    ],
}
PROGRAM = Program({"inputs": [{"name": "x"}], "report": {"partitions": PARTS}}, {}, {})


def test_parts_and_regions_of_the_host_hang_together() -> None:
    boxes = boxes_of(PROGRAM, STEPS, GRAPH, LAYERS)
    assert [(box.title, box.tensor) for box in boxes] == [
        ("Conv", "part_0/a/int8"),
        ("Sin", "h"),
        ("Add conv", "part_1/b/int8"),
        ("Softmax", "y"),
    ]
    first, sine, add, softmax = boxes
    assert sine.reads == (first.tensor,) and add.reads == (sine.tensor, first.tensor)
    assert softmax.reads == (add.tensor,)
    assert [box.region for box in boxes] == [
        "npu/part_0 on the NPU", "host/region_0.onnx on the host", "npu/part_1 on the NPU", "on the host",
    ]  # fmt: skip
    assert [box.shades.get("place", 0) for box in boxes] == [0, 1, 0, 1]
    assert [box.shades.get("cycles") for box in boxes] == [0.5, None, 1, None]
    assert [box.layer for box in boxes] == [0, None, 1, None]


def test_a_box_of_an_operator_that_only_the_machine_has_is_named_after_its_instruction() -> None:
    own = {**GRAPH, "layers": [{**layer, "op": "NvConv"} for layer in GRAPH["layers"]]}
    layers = [{**layer, "op": "convolution"} for layer in LAYERS]
    boxes = boxes_of(PROGRAM, STEPS, own, layers)
    assert [box.title for box in boxes] == ["convolution", "Sin", "convolution", "Softmax"]


def test_a_box_tells_what_is_known_of_its_layer() -> None:
    (first, *_) = boxes_of(PROGRAM, STEPS, GRAPH, LAYERS)
    assert first.hint.splitlines()[2:] == ["shape 1 x 4", "scale 0.5, zero point 3", "30 cycles, 8 bytes"]


def test_every_region_is_outlined_and_what_a_model_names_is_text() -> None:
    picture = drawing(boxes_of(PROGRAM, STEPS, GRAPH, LAYERS))
    assert picture.count('class="region"') == 4 and picture.count('class="edge"') == 4
    assert "Sin: &lt;none&gt;" in picture and "<none>" not in picture
