"""What outputs say, for people: the best classes with names, boxes, text; numbers where they are nothing of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.frozen import frozen
from npuc.images.description import MOST, Description
from npuc.images.pictures import fit, is_picture, open_picture, pillow
from npuc.ir import Array
from npuc.program import Program
from npuc.samples.sources import files_of
from npuc.samples.structured import row
from npuc.verification.judging.boxes import Boxes, Decoding, decode_boxes
from npuc.verification.judging.choosing import reading
from npuc.verification.judging.detections import Detections, in_units
from npuc.verification.judging.metric import Outputs, finite
from npuc.verification.judging.sequences import Sequences
from npuc.verification.judging.values import Classes

BEST = 5
"""Classes that are named."""
SHOWN = 8
"""Elements of an output that are shown."""
SURE = 1e-2
"""How far from 1 the sum of probabilities may be."""
COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#000075")


@frozen
class Reader:
    """Reads what a program gives for a picture. labels: names of the classes; empty: their numbers."""

    program: Program
    labels: tuple[str, ...]
    described: Description | None
    batch: int = 1
    """Pictures of a sample, which the outputs keep apart."""

    @classmethod
    def of(cls, program: Program, labels: Sequence[str]) -> Reader:
        """The reader of a program's outputs. labels: they take the place of the description's."""
        described = next(iter(program.images), None)
        ports = (*program.inputs, *program.outputs)
        batch = described.shape[0] if described else 1
        batch = batch if all(each.shape[:1] == (batch,) for each in ports) else 1
        if batch > 1:
            program = Program(_of_one(program.manifest), {})
        return cls(program, tuple(labels or (described.labels if described else ())), described, batch)

    def answer(self, outputs: Outputs) -> dict[str, Any]:
        """What one sample's outputs say, under `classes`, `boxes`, `text` or `values`.

        Raises DataError (E402) if there are not as many labels as classes.
        """
        numeric = all(
            np.asarray(each).dtype.kind in "fiub" and np.isfinite(each).all() for each in outputs.values()
        )
        found = reading(self.program) if numeric else None
        if isinstance(found, Classes) and (self.labels or self.described):
            return {"classes": self._classes(finite(outputs[found.output], found.output).ravel())}
        if isinstance(found, Detections) and (boxes := self._boxes(outputs, found.decoding)) is not None:
            return {"boxes": [*self._as_json(boxes)]}
        if isinstance(found, Sequences) and self.labels:
            read = found.digest(outputs, outputs, None)
            if read.probable:
                names = self._names(found.classes, beside=1)
                return {"text": "".join(names[int(each) - 1] for each in read.characters)}
        return {"values": {name: _values(np.asarray(each)) for name, each in outputs.items()}}

    def _names(self, classes: int, beside: int = 0) -> Sequence[str]:
        """The names of classes. beside: classes without a name, such as the blank."""
        if self.labels and len(self.labels) != classes - beside:
            limit = f"{classes - beside} names"
            raise DataError("E402", f"there are {len(self.labels)} labels", limit=limit, remedy="give as many")
        return self.labels or [str(each) for each in range(classes)]

    def _classes(self, values: Array) -> list[dict[str, Any]]:
        """The best classes; outputs that are no probabilities go through a softmax."""
        names = self._names(len(values))
        if values.min() < 0 or abs(values.sum() - 1) > SURE:
            values = np.exp(values - values.max())
            values /= values.sum()
        best = np.argsort(-values, kind="stable")[:BEST]
        return [
            {"class": int(each), "name": names[each], "probability": round(float(values[each]), 4)}
            for each in best
        ]

    def _boxes(self, outputs: Outputs, decoding: Decoding) -> Boxes | None:
        """The boxes in pixels of the input; None where the scores contradict the decoding."""
        found = decode_boxes(outputs, decoding)
        if found.low < -SURE or found.high > 1 + SURE:
            return None
        if found.distributions:  # most boxes have no object: the background is the more probable end
            means = outputs[decoding.scores].reshape(-1, decoding.columns).mean(axis=0)
            background = "first" if means[0] > means[-1] else "last"
            found = decode_boxes(outputs, replace(decoding, background=background))
        if self.described is None or not in_units([found.boxes]):
            return found.boxes
        height, width = self.described.size
        return found.boxes.scale(width, height)

    def _as_json(self, boxes: Boxes) -> Iterator[dict[str, Any]]:
        for corners, score, number in zip(boxes.corners, boxes.scores, boxes.classes, strict=True):
            name = self.labels[number] if number < len(self.labels) else str(number)
            place = [round(float(each), 1) for each in corners]
            yield {"class": int(number), "name": name, "probability": round(float(score), 4), "corners": place}


def _values(values: Array) -> dict[str, Any]:
    flat = values.ravel()[:SHOWN].tolist()
    plain = (each if isinstance(each, bool | int) or _is_finite(each) else str(each) for each in flat)
    return {"shape": [*values.shape], "first": [*plain]}


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and bool(np.isfinite(value))


def _of_one(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The ports and images of a manifest, for one picture in place of a batch."""
    return {
        key: [{**each, "shape": [1, *each["shape"][1:]]} for each in manifest[key]]
        for key in ("inputs", "outputs", "images")
    }


def answers(reader: Reader, outputs: Mapping[str, Array], count: int) -> list[dict[str, Any]]:
    """What each of so many samples says, or each picture of these. outputs: of all samples, (samples, ...)."""
    each = ({name: row(values, at) for name, values in outputs.items()} for at in range(count))
    if reader.batch == 1:
        return [reader.answer(one) for one in each]
    parts = (
        {name: values[at : at + 1] for name, values in one.items()} for one in each for at in range(reader.batch)
    )
    return [reader.answer(one) for one in parts]


def picture_files(data: Sequence[Path], count: int) -> list[Path]:
    """So many pictures; none if the data are others."""
    files = files_of(data)
    return files if len(files) == count and all(map(is_picture, files)) else []


def as_text(answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines of an answer."""
    for each in answer.get("classes", ()):
        yield f"{each['probability'] * 100:5.1f} %  {each['name']}"
    for each in answer.get("boxes", ()):
        corners = " ".join(f"{at:g}" for at in each["corners"])
        yield f"{each['probability'] * 100:5.1f} %  {each['name']}  {corners}"
    if "boxes" in answer and not answer["boxes"]:
        yield "no boxes"
    if "text" in answer:
        yield repr(answer["text"])
    for name, each in answer.get("values", {}).items():
        numbers = " ".join(f"{at:.5g}" if isinstance(at, float) else str(at) for at in each["first"])
        more = " ..." if np.prod(each["shape"]) > len(each["first"]) else ""
        yield f"{name} {each['shape']}: {numbers}{more}"


def draw_answer(picture: Path, described: Description, answer: Mapping[str, Any], most: int = MOST) -> bytes:
    """A PNG of what the network saw of a picture, with its boxes and their names; most: pixels of a side."""
    from io import BytesIO

    pil = pillow()
    from PIL import ImageDraw

    pixels = fit(open_picture(picture, described.order), described)
    places = [0, 0, 0] if described.order == "gray" else [described.order.index(each) for each in "rgb"]
    image = pil.fromarray(np.ascontiguousarray(pixels[..., places]))
    canvas = ImageDraw.Draw(image)
    for each in answer.get("boxes", ()):
        colour = COLOURS[each["class"] % len(COLOURS)]
        left, top, right, bottom = each["corners"]
        canvas.rectangle((min(left, right), min(top, bottom), max(left, right), max(top, bottom)), outline=colour)
        canvas.text((left + 2, top + 1), f"{each['name']} {each['probability'] * 100:.0f}", fill=colour)
    image.thumbnail((most, most))
    held = BytesIO()
    image.save(held, "PNG")
    return held.getvalue()
