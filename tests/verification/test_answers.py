"""What outputs say: classes, boxes and text worked out by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from npuc.errors import DataError
from npuc.images.description import describe
from npuc.ir import Array, TensorType
from npuc.program import Program
from npuc.verification.answers import Reader, answers, as_text, draw_answer

SHAPE = (1, 3, 32, 32)


def reader(labels: tuple[str, ...] = (), *, pictures: bool = True, batch: int = 1, **outputs: list[int]) -> Reader:
    (image,), shape = describe({"order": "bgr"}), (batch, *SHAPE[1:])
    port = {"name": "x", "shape": [*shape], "dtype": "float32"}
    manifest: dict[str, Any] = {
        "inputs": [port],
        "outputs": [{"name": name, "shape": shape, "dtype": "float32"} for name, shape in outputs.items()],
        "images": [image.bound_to({"x": TensorType(shape)}).as_json()] if pictures else [],
    }
    return Reader.of(Program(manifest, {}), labels)


def said(answer: dict[str, Any]) -> list[str]:
    return [*as_text(answer)]


def test_logits_become_probabilities_and_probabilities_stay() -> None:
    # exp(ln 6), exp(ln 3), exp(0): 60, 30 and 10 %
    logits = np.log(np.array([[1, 6, 3]], np.float32))
    ask = reader(("ant", "bee", "cow"), y=[1, 3]).answer
    wanted = [" 60.0 %  bee", " 30.0 %  cow", " 10.0 %  ant"]
    assert said(ask({"y": logits})) == wanted
    assert said(ask({"y": np.array([[0.1, 0.6, 0.3]], np.float32)})) == wanted
    assert said(reader(y=[1, 3]).answer({"y": logits}))[0] == " 60.0 %  1"
    assert [each["class"] for each in reader(y=[1, 9]).answer({"y": np.arange(9.0)[None]})["classes"]] == [
        8,
        7,
        6,
        5,
        4,
    ]
    with pytest.raises(DataError, match="there are 2 labels"):
        reader(("ant", "bee"), y=[1, 3]).answer({"y": logits})


def test_each_picture_of_a_batch_has_its_answer() -> None:
    ask, values = reader(("ant", "bee"), batch=2, y=[2, 2]), np.array([[[0.9, 0.1], [0.2, 0.8]]] * 2)
    found = answers(ask, {"y": values}, 2)
    assert [said(each)[0] for each in found] == [" 90.0 %  ant", " 80.0 %  bee"] * 2
    mixed = reader(("ant", "bee"), batch=2, y=[1, 2])  # the pictures of a sample make one class
    assert [said(each)[0] for each in answers(mixed, {"y": values[:, :1]}, 2)] == [" 90.0 %  ant"] * 2


def test_other_outputs_are_numbers_in_their_shapes() -> None:
    plain = reader(pictures=False, y=[1, 3])
    assert said(plain.answer({"y": np.array([[1.5, -2, 3]], np.float32)})) == ["y [1, 3]: 1.5 -2 3"]
    two = reader(y=[1, 3], z=[1, 2, 5])
    found = two.answer({"y": np.zeros((1, 3), np.float32), "z": np.arange(10.0).reshape(1, 2, 5)})
    assert said(found) == ["y [1, 3]: 0 0 0", "z [1, 2, 5]: 0 1 2 3 4 5 6 7 ..."]
    assert said(reader(y=[1, 2]).answer({"y": np.array([[np.nan, 1]], np.float32)})) == ["y [1, 2]: nan 1"]


def detections() -> Array:
    """A YOLO's output on 32 x 32 pixels, 16 + 4 + 1 boxes of two classes: two boxes of which one is sure."""
    columns = np.zeros((1, 6, 21), np.float32)
    columns[0, :, 3] = (16, 12, 8, 4, 0.1, 0.75)  # centre 16, 12; 8 x 4: corners 12, 10, 20, 14
    columns[0, :, 7] = (5, 5, 2, 2, 0.2, 0.1)
    return columns


def test_boxes_have_names_and_corners_in_pixels(tmp_path: Path) -> None:
    ask = reader(("cat", "dog"), y=[1, 6, 21])
    answer = ask.answer({"y": detections()})
    assert said(answer) == [" 75.0 %  dog  12 10 20 14"]
    assert said(ask.answer({"y": detections() * 0})) == ["no boxes"]
    unit = detections()
    unit[0, :4] /= 32
    assert ask.answer({"y": unit}) == answer
    Image.new("RGB", (32, 32), (10, 20, 30)).save(tmp_path / "a.png")
    assert ask.described is not None
    image = np.asarray(Image.open(io.BytesIO(draw_answer(tmp_path / "a.png", ask.described, answer))))
    assert image.shape == (32, 32, 3) and image[0, 0].tolist() == [10, 20, 30]
    assert image[10, 12].tolist() == image[14, 20].tolist() == [0x3C, 0xB4, 0x4B]  # the second class's colour


@pytest.mark.parametrize("first", [True, False])
def test_scores_that_sum_to_one_have_a_background(first: bool) -> None:
    """Before the classes or behind them: three boxes of nothing, and a dog."""
    scores = np.array([[0.98, 0.01, 0.01]] * 3 + [[0.1, 0.1, 0.8]], np.float32)[
        :, [0, 1, 2] if first else [1, 2, 0]
    ]
    places = np.array([[1, 1, 2, 2]] * 3 + [[12, 10, 20, 14]], np.float32)
    answer = reader(("cat", "dog"), b=[1, 4, 4], s=[1, 4, 3]).answer({"b": places[None], "s": scores[None]})
    assert said(answer) == [" 80.0 %  dog  12 10 20 14"]


def test_a_sequence_is_text_where_classes_have_names() -> None:
    # blank, b, b, blank, b, a: repeats are one, blanks part them
    steps = np.eye(3, dtype=np.float32)[None, [0, 2, 2, 0, 2, 1]]
    assert said(reader(("a", "b"), y=[1, 6, 3]).answer({"y": steps})) == ["'bba'"]
    assert "values" in reader(y=[1, 6, 3]).answer({"y": steps})
    assert "values" in reader(("a", "b"), y=[1, 6, 3]).answer({"y": steps * 3})
