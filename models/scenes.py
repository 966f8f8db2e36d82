"""Images with known objects for detectors: red discs and blue blocks of several sizes and contrasts.

Backgrounds have a colour, three gratings and noise; grey discs and blocks, lighter or darker, are part of the
background, too. Boxes are (class, x1, y1, x2, y2) in pixels; class 0 is a disc, 1 a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE = 64
CLASSES = 2
KINDS = 3
"""Discs, blocks, and grey things of either shape."""
HUES = np.array([[1.0, -0.5, -0.5], [-0.5, -0.5, 1.0], [0.9, 0.9, 0.9]])
SIDES, CONTRASTS = (10, 29), (0.3, 0.9)
MOST_THINGS, ATTEMPTS, GAP = 4, 40, 3
NOISE = 0.04

Array = NDArray[Any]
ROWS, COLUMNS = np.mgrid[:SIZE, :SIZE]


@dataclass(frozen=True)
class Scenes:
    """pixels: (images, 3, SIZE, SIZE) float32, about -1 to 1; boxes: (objects, 5) for each image."""

    pixels: Array
    boxes: tuple[Array, ...]


def scenes(count: int, seed: Sequence[int]) -> Scenes:
    """Images drawn from a seed."""
    random = np.random.default_rng(seed)
    found = [_scene(random) for _ in range(count)]
    return Scenes(np.stack([image for image, _ in found]).astype(np.float32), tuple(boxes for _, boxes in found))


def _scene(random: np.random.Generator) -> tuple[Array, Array]:
    """One image and its boxes."""
    colour = random.uniform(-0.3, 0.3) + random.normal(0, 0.05, (3, 1, 1))
    image = colour + sum(_grating(random) for _ in range(3))
    things: list[tuple[int, ...]] = []
    wanted = random.integers(1, MOST_THINGS + 1)
    for _ in range(ATTEMPTS):
        if len(things) < wanted:
            kind, box, mask = _thing(random)
            if all(_apart(box, other[1:]) for other in things):
                hue = HUES[kind] * random.uniform(*CONTRASTS) * (random.choice((-1, 1)) if kind == CLASSES else 1)
                image = np.where(mask, (image + colour) / 2 + hue[:, None, None], image)
                things.append((kind, *box))
    objects = [each for each in things if each[0] < CLASSES]
    return image + random.normal(0, NOISE, image.shape), np.array(objects, np.float64).reshape(-1, 5)


def _grating(random: np.random.Generator) -> Array:
    """A grey wave over the whole image with a little colour, (3, SIZE, SIZE)."""
    across, down = random.normal(0, 0.3, 2)
    height = random.normal(0, 0.12) + random.normal(0, 0.02, (3, 1, 1))
    return height * np.sin(across * COLUMNS + down * ROWS + random.uniform(0, 2 * np.pi))


def _thing(random: np.random.Generator) -> tuple[int, tuple[int, int, int, int], Array]:
    """The kind, box and pixels of a disc or a block somewhere in the image."""
    kind = int(random.integers(KINDS))
    width, height = (int(each) for each in random.integers(*SIDES, 2))
    disc = random.random() < 0.5 if kind == CLASSES else kind == 0
    height = width if disc else height
    x, y = int(random.integers(SIZE - width + 1)), int(random.integers(SIZE - height + 1))
    across, down = ((COLUMNS - x + 0.5) / width - 0.5, (ROWS - y + 0.5) / height - 0.5)
    inside = np.hypot(across, down) < 0.5 if disc else np.maximum(np.abs(across), np.abs(down)) < 0.5
    return kind, (x, y, x + width, y + height), inside


def _apart(box: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two boxes have a gap between them."""
    return any(low[axis] >= high[axis + 2] + GAP for low, high in ((box, other), (other, box)) for axis in (0, 1))
