"""`npuc accuracy` for detectors, sequences and values: what is recognised, refused and printed, and on Dask."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from npuc.samples import streams
from tests.cli.process import Outcome, compiled, npuc
from tests.files import split
from tests.onnx_models import parse

PAIR = """g (float[1,3,16,16] x) => (float[1,16,4] boxes, float[1,16,2] scores) {
    b = Conv <kernel_shape = [4, 4], strides = [4, 4]> (x, bw, bb)
    s = Conv <kernel_shape = [4, 4], strides = [4, 4]> (x, sw, sb)
    p = Sigmoid(s)
    bt = Transpose <perm = [0, 2, 3, 1]> (b)
    pt = Transpose <perm = [0, 2, 3, 1]> (p)
    boxes = Reshape(bt, four)
    scores = Reshape(pt, two)
}"""
CELLS = """g (float[1,3,32,32] x) => (float[1,6,21] y) {
    a = Conv <kernel_shape = [8, 8], strides = [8, 8]> (x, aw, ab)
    b = Conv <kernel_shape = [16, 16], strides = [16, 16]> (x, bw, ab)
    c = Conv <kernel_shape = [32, 32], strides = [32, 32]> (x, cw, ab)
    af = Reshape(a, shape)
    bf = Reshape(b, shape)
    cf = Reshape(c, shape)
    y = Concat <axis = 2> (af, bf, cf)
}"""
STEPS = """g (float[1,1,8,20] x) => (float[1,20,5] y) {
    a = Conv <kernel_shape = [8, 1]> (x, aw, ab)
    t = Transpose <perm = [0, 2, 3, 1]> (a)
    y = Reshape(t, shape)
}"""
MAP = """g (float[1,3,8,8] x) => (float[1,2,8,8] y) { y = Conv <kernel_shape = [1, 1]> (x, w) }"""
VALUE = """g (float[1,3,8,8] x) => (float[1,1] y) {
    a = Conv <kernel_shape = [8, 8]> (x, w)
    y = Flatten(a)
}"""
RANDOM = np.random.default_rng(3)
CONSTANTS: dict[str, dict[str, Any]] = {
    PAIR: {"bw": RANDOM.normal(0, 0.05, (4, 3, 4, 4)), "bb": np.array([2.0, 3, 11, 12]),
        "sw": RANDOM.normal(0, 0.4, (2, 3, 4, 4)), "sb": np.array([-1.5, -2]), "four": np.array([1, 16, 4]),
        "two": np.array([1, 16, 2])},
    CELLS: {**{name: RANDOM.normal(0, 1 / size, (6, 3, size, size)) * 0.3 for name,
        size in (("aw", 8), ("bw", 16), ("cw", 32))}, "ab": np.array([16.0, 15, 12, 9, -0.5, 0.5]),
        "shape": np.array([1, 6, -1])},
    STEPS: {"aw": RANDOM.normal(0, 1, (5, 1, 8, 1)), "ab": RANDOM.normal(1, 1, 5), "shape": np.array([1, 20, 5])},
    MAP: {"w": RANDOM.normal(0.2, 1, (2, 3, 1, 1))},
    VALUE: {"w": RANDOM.normal(0.02, 0.1, (1, 3, 8, 8))},
}  # fmt: skip


class Made:
    """A model, its program, and images for it."""

    def __init__(self, text: str, folder: Path, count: int = 9) -> None:
        model = parse(text)
        for name, values in CONSTANTS[text].items():
            typed = np.asarray(values, np.int64 if np.asarray(values).dtype.kind == "i" else np.float32)
            model.graph.initializer.append(numpy_helper.from_array(typed, name))
        self.model, self.program, self.data = (folder / name for name in ("m.onnx", "m.npu", "x.npz"))
        onnx.save(model, str(self.model))
        shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim][1:]
        self.images = np.random.default_rng(4).normal(0.4, 1, (count, *shape)).astype(np.float32)
        np.savez(self.data, x=self.images)
        compiled(self.model, self.program, "--calibration", self.data).done()
        session = onnxruntime.InferenceSession(str(self.model))
        self.exact = [session.run(None, {"x": each[None]}) for each in self.images]

    def judged(self, *options: object, **arrays: Any) -> Outcome:
        np.savez(self.data, **{"x": self.images, **arrays})
        return npuc("accuracy", self.model, self.program, "--data", self.data, *options)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(PAIR, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(STEPS, tmp_path_factory.mktemp("steps"))


def test_boxes_and_scores_are_a_detector_judged_by_fp32(pair: Made) -> None:
    found = pair.judged("--json").json
    assert found["metric"] == "detections" and "(1, 16, 4)" in found["chosen"] and found["truth"] == "fp32"
    assert found["decoding"]["box_format"] == "corners" and found["decoding"]["units"] == "pixels"
    assert found["samples"] == 9 and found["classes"] == 2
    # nothing overlaps so little that two of a class would stay: at most a box of each class and sample
    passed = sum((each[1][0].max(axis=1) >= 0.25).any() for each in pair.exact)
    assert passed <= found["boxes"] <= 2 * 9
    assert found["fp32"]["map50"] == found["fp32"]["recall"] == 1 and found["fp32"]["box_error_px"] == 0
    assert found["integer"] == found["simulator"]
    assert 0 < found["simulator"]["box_error_px"] < 1
    assert found["simulator"]["interval"][0] <= found["simulator"]["map50"] <= 1


def test_words_of_a_first_block_are_simulated_and_the_integer_network_computes_the_others(pair: Made) -> None:
    usual = pair.judged("--json").json
    assert usual["simulated"] == {"samples": 8, "bit_exact": True, "others": "integer network"}
    every = pair.judged("--simulate", "all", "--json").json
    assert every["simulated"] == {"samples": 9, "bit_exact": True, "others": None}
    assert pair.judged("--simulate", "9", "--json").json == every
    assert every["simulator"] == usual["simulator"]
    text = " ".join(pair.judged("--simulate", "1").done().split())
    assert "the words of the first sample, bit-exact" in text or "the words of the first 1 sample" in text
    assert "the integer network computed the others" in text
    for wrong in ("0", "-1", "some", "1.5", ""):
        assert "--simulate" in pair.judged("--simulate", wrong).usage()


def test_words_that_differ_from_the_integer_network_are_a_mismatch(tmp_path: Path) -> None:
    made = Made(MAP, tmp_path)
    words = made.program / "weight.bin"
    data = bytearray(words.read_bytes())
    data[80] ^= 0x40  # a weight: bias and scale are the first five words
    words.write_bytes(data)
    command = ("--metric", "regression", "--allow-modified")
    part, every = (made.judged(*command, "--simulate", count, "--json") for count in ("2", "all"))
    assert part.code == every.code == 1 and part.json["status"] == every.json["status"] == "mismatch"
    assert part.json["simulated"] == {"samples": 2, "bit_exact": False, "others": "integer network"}
    assert part.json["simulator"] is None and part.json["integer"] is not None
    assert every.json["simulator"]["l1"] > every.json["integer"]["l1"]
    assert "--simulate all" in made.judged(*command).out


def test_the_detections_of_fp32_given_as_labels_are_found_and_others_are_not(pair: Made) -> None:
    labels = np.full((9, 16, 5), -1.0)
    for at, (boxes, scores) in enumerate(pair.exact):
        best = scores[0].argmax(axis=1)
        kept = list[int]()
        for box in np.argsort(-scores[0].max(axis=1), kind="stable").tolist():
            rivals = [other for other in kept if best[other] == best[box]]
            if scores[0][box].max() >= 0.25 and all(
                _overlap(boxes[0][box], boxes[0][other]) <= 0.45 for other in rivals
            ):
                kept.append(box)
        labels[at, kept, 0], labels[at, kept, 1:] = best[kept], boxes[0][kept]
    same = pair.judged("--json", y=labels).json
    assert same["truth"] == "labels" and same["boxes"] == np.count_nonzero(labels[..., 0] >= 0)
    assert same["fp32"]["map50"] == 1
    away = np.where(labels[..., :1] >= 0, labels + np.array([0, 100, 100, 100, 100]), -1)
    assert pair.judged("--json", y=away).json["fp32"]["map50"] == 0


def _overlap(one: Any, other: Any) -> float:
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    shared = np.clip(high - low, 0, None).prod()
    return shared / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - shared)


def test_tables_fit_80_columns_and_say_what_is_assumed(pair: Made, steps: Made) -> None:
    boxes = "mAP50", "corners in pixels", "score 0.25 or more", "IoU 0.45", "background none", "detections of fp32"
    for made, options, words in (
        (pair, (), boxes),
        (steps, ("--metric", "ctc"), ("CER", "20 steps", "first class is blank")),
    ):
        text = made.judged(*options).done()
        assert all(word in text for word in words), text
        assert max(map(len, text.splitlines())) <= 80, text
    text = pair.judged("--metric", "regression").done()
    assert "Pearson" in text and "scores" in text and max(map(len, text.splitlines())) <= 80, text


def test_one_output_with_the_boxes_of_the_image_is_a_yolo_and_logits_are_refused(tmp_path: Path) -> None:
    said = Made(CELLS, tmp_path).judged().refused("E402")
    assert "they are no probabilities" in said and "--metric FILE.py:FUNCTION" in said


OWN = """
def area(outputs, truth):
    boxes = outputs["boxes"].reshape(-1, 4)
    return float((boxes[:, 2] - boxes[:, 0]).mean()) - (0 if isinstance(truth, dict) else float(truth))

def fails(outputs, truth):
    raise KeyError("nothing")

def nan(outputs, truth):
    return float("nan")

none = 3
"""


def test_a_metric_of_ones_own_is_a_function_of_a_sample(pair: Made, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    exact = np.array([(each[0][0][:, 2] - each[0][0][:, 0]).mean() for each in pair.exact])
    found = pair.judged("--metric", f"{file}:area", "--json").json
    assert found["truth"] == "fp32" and found["metric"] == f"{file}:area"
    assert found["fp32"]["mean"] == pytest.approx(exact.mean(), rel=1e-5) and found["fp32"]["difference"] == 0
    low, high = found["simulator"]["interval"]
    assert low <= found["simulator"]["mean"] <= high and found["simulator"] == found["integer"]
    labelled = pair.judged("--metric", f"{file}:area", "--json", y=np.full(9, 2.0)).json
    assert labelled["truth"] == "labels" and labelled["fp32"]["mean"] == pytest.approx(exact.mean() - 2, rel=1e-4)
    assert "mean" in pair.judged("--metric", f"{file}:area").done()
    for function, said in (
        ("fails", "KeyError"),
        ("nan", "finite"),
        ("none", "no function"),
        ("other", "no function"),
    ):
        assert said in pair.judged("--metric", f"{file}:{function}").refused("E402")
    refusal = pair.judged("--metric", f"{tmp_path}/no.py:f").refused("E402")
    assert "does not run" in refusal and "correct --metric" in refusal
    for wrong in (f"{file}", f"{file}:", "own:f", f"{file}:1"):
        assert "FILE.py:FUNCTION" in pair.judged("--metric", wrong).usage()
    np.savez(pair.data, x=pair.images)


def test_steps_and_classes_are_a_sequence(steps: Made) -> None:
    assert "no probabilities" in steps.judged().refused("E402")
    found = steps.judged("--json", "--metric", "ctc").json
    assert found["truth"] == "fp32" and found["fp32"]["cer"] == 0
    read = [_collapsed(each[0][0]) for each in steps.exact]
    assert found["characters"] == sum(map(len, read))
    assert 0 <= found["simulator"]["cer"] < 0.5 and found["integer"] == found["simulator"]
    labels = np.full((9, 20), -1)
    for row, each in zip(labels, read, strict=True):
        row[: len(each)] = each
    labelled = steps.judged("--json", y=labels).json
    assert labelled["metric"] == "ctc" and "a sequence of labels" in labelled["chosen"]
    assert labelled["truth"] == "labels" and labelled["fp32"]["cer"] == 0
    assert labelled["simulator"] == found["simulator"]


def _collapsed(values: Any) -> list[int]:
    read, before = list[int](), 0
    for each in values.argmax(axis=1).tolist():
        if each not in (0, before):
            read.append(each)
        before = each
    return read


def test_heat_maps_are_refused_with_what_is_recognised_and_compared_when_asked(tmp_path: Path) -> None:
    made = Made(MAP, tmp_path)
    said = made.judged().refused("E402")
    assert "no metric is recognised" in said and "(1, 2, 8, 8)" in said and "(4 + classes, N)" in said
    assert "--metric FILE.py:FUNCTION" in made.judged("--metric", "detections").refused("E402")
    found = made.judged("--metric", "regression", "--json").json
    assert found["chosen"] == "--metric" and found["truth"] == "fp32" and found["simulator"]["pearson"] > 0.99
    labels = np.stack([each[0][0] for each in made.exact]) + np.float32(0.5)
    found = made.judged("--json", y=labels).json
    assert found["metric"] == "regression" and found["truth"] == "labels"
    assert found["fp32"]["l1"] == pytest.approx(0.5, rel=1e-5) and found["fp32"]["pearson"] == pytest.approx(1)


def test_one_value_is_a_regression(tmp_path: Path) -> None:
    made = Made(VALUE, tmp_path)
    exact = np.array([each[0].item() for each in made.exact])
    assert made.judged("--json").json["truth"] == "fp32"
    wanted = np.round(exact * 3)  # whole numbers: labels that could be classes
    found = made.judged("--json", y=wanted).json
    assert found["metric"] == "regression" and found["truth"] == "labels"
    assert found["fp32"]["l1"] == pytest.approx(np.abs(exact - wanted).mean(), rel=1e-5)
    assert found["fp32"]["pearson"] == pytest.approx(np.corrcoef(exact, wanted)[0, 1], rel=1e-6)
    low, high = found["fp32"]["pearson_interval"]
    assert low <= found["fp32"]["pearson"] <= high


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(
            ((option, "1"), f"{option} was removed; write it as a metric of your own: --metric FILE.py:FUNCTION")
            for option in (
                "--nms-iou",
                "--layout",
                "--blank",
                "--score-threshold",
                "--score-function",
                "--background",
                "--box-format",
            )
        ),
        (("--truth", "fp32"), "--truth was removed; labels are the truth if the data has some"),
        (("--metric", "map"), "--metric"),
        (("--scheduler", "cluster"), "tcp://HOST:PORT"),
    ],
)
def test_what_a_metric_does_not_take_is_a_usage_error(
    pair: Made, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    np.savez(tmp_path / "x.npz", x=pair.images)
    command = ("accuracy", pair.model, pair.program, "--data", tmp_path / "x.npz")
    assert said in npuc(*command, *options).usage()


@pytest.mark.parametrize(
    ("arrays", "options", "code"),
    [
        ({"y": np.zeros((9, 2, 4))}, (), "E402"),
        ({"y": np.full((9, 2, 5), -1.0)}, (), "E402"),
        ({"y": np.full((9, 2, 5), np.nan)}, (), "E402"),
        ({"y": np.array(["cat"] * 9)}, (), "E402"),
        ({"y": np.zeros((4, 2, 5))}, (), "E401"),
        ({"y": np.array([None] * 9, object)}, (), "E401"),
        ({"y": np.zeros((9, 3))}, ("--metric", "regression"), "E402"),
        ({"y": np.zeros((9, 3))}, ("--metric", "ctc"), "E402"),
        ({}, ("--metric", "top1"), "E401"),
        ({"x": np.full((9, 3, 16, 16), np.nan)}, (), "E402"),
        ({"x": np.zeros((0, 3, 16, 16))}, (), "E402"),
        ({"x": np.zeros((9, 3, 16, 15))}, (), "E402"),
    ],
)
def test_hostile_data_are_refused(
    pair: Made, tmp_path: Path, arrays: dict[str, Any], options: tuple[str, ...], code: str
) -> None:
    np.savez(tmp_path / "x.npz", **{"x": pair.images, **arrays})
    command = ("accuracy", pair.model, pair.program, "--data", tmp_path / "x.npz", *options)
    assert npuc(*command, "--json").json["errors"][0]["code"] == code
    npuc(*command).refused(code)


def test_labels_that_only_some_files_have_are_not_left_out_in_silence(pair: Made, tmp_path: Path) -> None:
    folder = split(tmp_path / "parts", pair.images, (4, 5))
    labels = np.tile([[0.0, 2, 3, 11, 12]], (4, 1, 1))
    np.savez(folder / "000.npz", x=pair.images[:4], y=labels)
    command = ("accuracy", pair.model, pair.program, "--data", folder)
    npuc(*command).refused("E401")


def test_a_cluster_needs_dask(pair: Made) -> None:
    with patch.dict(sys.modules, {"distributed": None}):
        command = ("accuracy", pair.model, pair.program, "--data", pair.data)
        assert "npuc[dask]" in npuc(*command, "--scheduler", "tcp://127.0.0.1:1").refused("E507")


def test_a_dask_cluster_gives_the_same_report_to_the_last_bit(
    pair: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed", reason="npuc[dask] is not installed")
    monkeypatch.setattr("npuc.running.BATCH", 4)
    monkeypatch.setattr(streams, "LARGE", 1 << 10)  # blocks begin within files that are streamed
    images = np.random.default_rng(8).normal(0.5, 1, (45, 3, 16, 16)).astype(np.float32)
    folder = split(tmp_path / "parts", images, (7, 1, 30, 7))
    command = ("accuracy", pair.model, pair.program, "--data", folder, "--json")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
    ) as cluster:
        address = ("--scheduler", cluster.scheduler_address)
        there = npuc(*command, *address).out
        regression = npuc(*command, "--metric", "regression", *address).out
        np.savez(folder / "002.npz", x=np.where(images[:30] > 3, np.nan, images[:30]))
        refused = npuc(*command, *address)
    assert (refused.code, refused.json["errors"][0]["code"]) == (1, "E402")
    assert "002.npz" in refused.json["errors"][0]["reason"]
    np.savez(folder / "002.npz", x=images[8:38])
    assert there == npuc(*command).out
    assert regression == npuc(*command, "--metric", "regression").out
