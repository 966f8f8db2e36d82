"""Pictures as samples: decoding, sizes and values by hand, and hostile files."""

from __future__ import annotations

from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pytest
from PIL import Image

from npuc.errors import DataError, Problem
from npuc.images.description import describe
from npuc.images.pictures import fit, open_picture
from npuc.ir import Array, TensorType
from npuc.samples.loading import load
from npuc.samples.streams import Streamed
from npuc.system.budget import set_limits
from tests.images import hostile
from tests.images.making import saved

KIND = {"x": TensorType((1, 3, 2, 4))}


def values(path: Path, kind: TensorType = KIND["x"], **keys: object) -> Array:
    """What the model reads for a picture."""
    images = [each.bound_to({"x": kind}) for each in describe(keys)]
    return load([path], {"x": kind}, images=images).inputs["x"]


def pixels(path: Path, size: tuple[int, int], **keys: object) -> Array:
    """The red pixels of a picture that was made to fit."""
    (found,) = describe(keys)
    found = found.bound_to({"x": TensorType((1, 3, *size))})
    return fit(open_picture(path, found.order), found)[..., 0]


def grey(path: Path, rows: list[list[int]]) -> Path:
    return saved(path, np.array(rows, np.uint8)[..., None].repeat(3, axis=2))


def test_values_are_torchvision_s(tmp_path: Path) -> None:
    # ToTensor, then Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) of the pixel 124, 116, 103
    path = saved(tmp_path / "a.png", np.full((2, 4, 3), (124, 116, 103), np.uint8))
    found = values(path, preset="imagenet", resize=4)[0, 0]
    wanted = [(124 / 255 - 0.485) / 0.229, (116 / 255 - 0.456) / 0.224, (103 / 255 - 0.406) / 0.225]
    np.testing.assert_allclose(found, np.array(wanted)[:, None, None].repeat(2, 1).repeat(4, 2), atol=1e-5)


def test_orders_layouts_and_alpha(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", np.full((2, 4, 4), (10, 20, 30, 40), np.uint8))
    last = TensorType((1, 2, 4, 3))
    assert values(path)[0, 0, :, 0, 0].tolist() == [10, 20, 30]
    assert values(path, order="bgr", mean=[1, 2, 3])[0, 0, :, 1, 3].tolist() == [29, 18, 7]
    assert values(path, last, order="bgr")[0, 0, 1, 3].tolist() == [30, 20, 10]
    assert values(path, TensorType((1, 4, 2, 4)), order="bgra")[0, 0, :, 0, 0].tolist() == [30, 20, 10, 40]
    # ITU-R 601: 0.299 * 10 + 0.587 * 20 + 0.114 * 30 = 18.15
    assert values(path, TensorType((1, 1, 2, 4)), order="gray")[0, 0, 0, 0, 0] == 18


def test_resampling_by_hand(tmp_path: Path) -> None:
    # centres of the pixels: between 0 and 100 lie 25 and 75
    assert pixels(grey(tmp_path / "up.png", [[0, 100]]), (1, 4)).tolist() == [[0, 25, 75, 100]]
    # twice as wide triangles: (.75 * 0 + .75 * 100 + .25 * 200) / 1.75 = 71.4, (25 + 150 + 75) / 1.75 = 142.9
    assert pixels(grey(tmp_path / "down.png", [[0, 100, 200, 100]]), (1, 2)).tolist() == [[71, 143]]
    near = pixels(grey(tmp_path / "near.png", [[0, 100]]), (1, 4), interpolation="nearest")
    assert near.tolist() == [[0, 0, 100, 100]]


def test_the_short_side_is_resized_and_the_middle_taken(tmp_path: Path) -> None:
    # 5 x 3 to 2 rows: int(2 * 5 / 3) = 3 columns; the middle 2 begin at round(0.5) = 0, as in torchvision
    path = grey(tmp_path / "a.png", [[10 * x for x in range(5)]] * 3)
    wide = Image.open(path).resize((3, 2), Image.Resampling.BILINEAR)
    assert pixels(path, (2, 2), resize=2).tolist() == np.asarray(wide)[:, :2, 0].tolist()
    # 7 x 1 to 1 row: 7 columns; the middle 2 begin at round(2.5) = 2
    path = grey(tmp_path / "b.png", [[10 * x for x in range(7)]])
    assert pixels(path, (1, 2), resize=2)[0, 0] == np.asarray(Image.open(path).resize((14, 2)))[0, 6, 0]


def test_a_letterbox_holds_all_of_the_picture(tmp_path: Path) -> None:
    path = grey(tmp_path / "a.png", [[10, 10, 10, 10], [30, 30, 30, 30]])
    assert pixels(path, (5, 4), letterbox=7).tolist() == [[7] * 4, [10] * 4, [30] * 4, [7] * 4, [7] * 4]
    # twice as large: 2 x 4 becomes 4 x 8, three rows around it
    found = pixels(path, (7, 8), letterbox=7)
    assert (found[0] == 7).all() and (found[1] == 10).all() and (found[4] == 30).all() and (found[5:] == 7).all()


def test_folders_lists_and_classes_have_an_order(tmp_path: Path) -> None:
    images = [describe({"labels": ["cat", "dog"]})[0].bound_to(KIND)]
    for at, name in enumerate(("dog/b.png", "dog/a.PNG", "cat/c.jpg")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        saved(tmp_path / f"{name}", np.full((2, 4, 3), at, np.uint8))
    (tmp_path / "cat" / ".hidden.png").write_bytes(b"")
    found = load([tmp_path], KIND, images=images)
    assert found.inputs["x"][:, 0, 0, 0, 0].tolist() == [2, 1, 0]
    assert found.labels is not None and found.labels.tolist() == [0, 1, 1]
    (tmp_path / "list.csv").write_text("# first\ndog/b.png, 7\ncat/c.jpg,1\n", "utf-8")
    found = load([tmp_path / "list.csv"], KIND, images=images)
    assert found.labels is not None and found.labels.tolist() == [7, 1]
    (tmp_path / "list.txt").write_text("cat/c.jpg\ndog/b.png\n", "utf-8")
    assert load([tmp_path / "list.txt"], KIND, images=images).inputs["x"][:, 0, 0, 0, 0].tolist() == [2, 0]
    strange = load([tmp_path], KIND, images=[describe("none")[0].bound_to(KIND)])
    assert strange.labels is None and "'cat' is no class number" in strange.left_out


def test_pictures_fill_batches_and_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(4):
        grey(tmp_path / f"{at}.png", [[at] * 4] * 2)
    pairs = {"x": TensorType((2, 3, 2, 4))}
    images = [describe("none")[0].bound_to(pairs)]
    assert load([tmp_path], pairs, images=images).inputs["x"][:, :, 0, 0, 0].tolist() == [[0, 1], [2, 3]]
    monkeypatch.setattr("npuc.samples.streams.LARGE", 100)
    found = load([tmp_path], pairs, images=images)
    assert isinstance(found.inputs, Streamed) and len(found) == 2
    assert [feed["x"][1, 0, 0, 0] for feed in found.part(1, 2).feeds()] == [3]
    (tmp_path / "3.png").unlink()
    with pytest.raises(DataError, match=r"3 pictures, from .* do not fill batches"):
        load([tmp_path], pairs, images=images)


@pytest.mark.parametrize(("name", "content", "code", "said"), [
    ("a.jpg", b"", "E401", "no JPEG"), ("a.png", b"no picture", "E401", "no PNG"),
    ("missing.png", None, "E401", "No such file"), ("renamed.png", "JPEG", "E401", "no PNG"),
    ("deep.png", "I;16", "E402", "mode I;16"),
    ("bomb.png", (60_000, 60_000), "E403", "more pixels than memory holds"),
    ("large.png", (9_000, 9_000), "E403", "9000 x 9000 pixels"),
    ("list.txt", b"sub\n", "E401", "lists no files"),
])  # fmt: skip
def test_files_that_are_no_pictures_are_refused_by_name(
    tmp_path: Path, name: str, content: object, code: str, said: str
) -> None:
    path = tmp_path / name
    if content == "JPEG":
        Image.new("RGB", (4, 2)).save(path, "JPEG")
    elif content == "I;16":
        Image.fromarray(np.full((2, 4), 40_000, np.uint16)).save(path)
    elif isinstance(content, tuple):
        path.write_bytes(hostile.png(content[0], content[1], 8, 2, hostile.zeros(99)))
    elif isinstance(content, bytes):
        path.write_bytes(b"# nothing\n" if said == "lists no files" else content)
    with pytest.raises(DataError) as caught:
        values(path)
    (problem,) = caught.value.problems
    assert (problem.code, name in problem.reason, said in problem.reason) == (code, True, True), problem


def test_510_damaged_and_hostile_files_each_have_a_code(tmp_path: Path) -> None:
    """Sound in spite of what they are made of: read. Others: a code and the name, and memory within the limit."""
    codes = dict[str, set[str]]()
    hostile.zeros(1 << 27)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    for seed in range(510):
        kind, path = hostile.write(tmp_path, seed)
        problem = damage(path)
        codes.setdefault(kind, set()).add(problem.code if problem else "")
        assert problem is None or path.stem[:3] in problem.reason, problem
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 96 << 10  # kB; 64 of them for pictures
    sound = {kind for kind, found in codes.items() if found == {""}}
    assert sound == {"plain", "modes", "upright", "animated", "names", "profile", "strange_exif"}
    assert codes["huge"] == {"E403"} and codes["bomb"] >= {"E401", "E403"} and codes["deep"] == {"", "E402"}
    for kind in ("truncated", "noise", "other_form", "empty", "links", "pipe"):
        assert codes[kind] == {"E401"}, kind


def damage(path: Path) -> Problem | None:
    """Why a picture is refused; None if it is read."""
    try:
        with set_limits(memory=1 << 26):
            assert values(path).shape == (1, 1, 3, 2, 4)
    except DataError as error:
        return error.problems[0]
    return None


@pytest.mark.parametrize(
    ("orientation", "rows"),
    [
        # the file holds 1 2 3 above 4 5 6; EXIF names what its first row and its first column are: top and left;
        # top, right; bottom, right; bottom, left; left, top; right, top; right, bottom; left, bottom
        (1, [[1, 2, 3], [4, 5, 6]]),
        (2, [[3, 2, 1], [6, 5, 4]]),
        (3, [[6, 5, 4], [3, 2, 1]]),
        (4, [[4, 5, 6], [1, 2, 3]]),
        (5, [[1, 4], [2, 5], [3, 6]]),
        (6, [[4, 1], [5, 2], [6, 3]]),
        (7, [[6, 3], [5, 2], [4, 1]]),
        (8, [[3, 6], [2, 5], [1, 4]]),
        (9, [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_a_picture_stands_as_exif_says(tmp_path: Path, orientation: int, rows: list[list[int]]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / "a.png", np.arange(1, 7).reshape(2, 3, 1).repeat(3, axis=2), exif=exif)
    assert pixels(path, (len(rows), len(rows[0]))).tolist() == rows


def test_a_picture_needs_a_description_and_one_input(tmp_path: Path) -> None:
    path = grey(tmp_path / "a.png", [[1]])
    with pytest.raises(DataError, match="nothing describes how the input reads one"):
        load([path], KIND)
    with pytest.raises(DataError, match="gives one input, and the model has 2"):
        load([path], {**KIND, "z": TensorType((1,))}, images=[describe("none")[0].bound_to(KIND)])
