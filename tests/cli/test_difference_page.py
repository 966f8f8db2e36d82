"""`npuc diff A B -o F.html`: both networks side by side, and what changed."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import onnx
import pytest

from tests.cli.pages import NEEDS_CHROMIUM, Structure, opened
from tests.cli.process import Digits, compiled, npuc

CLICKS = """<script>
const found = [], pair = [...document.querySelectorAll(".graph")];
const changed = document.querySelector("tr[data-layer]").dataset.layer;
const has = (each) => each.querySelectorAll(".chosen").length > 0;
for (const one of pair) {
  one.querySelector(`[data-layer="${changed}"] rect`).dispatchEvent(new MouseEvent("click", { bubbles: true }));
  found.push([pair.map(has), document.querySelectorAll("tr.chosen").length, location.hash]);
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
}
const widths = () => pair.map((each) => each.firstElementChild.width.baseVal.value);
const before = widths();
document.querySelector('[data-size="1.25"]').click();
found.push(widths().map((each, at) => each / before[at]));
document.body.dataset.found = JSON.stringify(found);
</script></body>"""


@pytest.fixture(scope="module")
def page(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("difference")
    options = ("--machine", "large", "--isa", "documented", "--calibration", digits.few)
    npuc("compile", digits.model, "--target", "easynpu", *options, "-o", folder / "large.npu").done()
    npuc("diff", digits.program, folder / "large.npu", "-o", folder / "d.html").done()
    return folder / "d.html"


def test_the_page_is_whole_and_refers_to_nothing_outside_itself(page: Path) -> None:
    structure = Structure()
    structure.feed(page.read_text(encoding="utf-8"))
    assert structure.open == [] and len(structure.ids) == len(set(structure.ids))
    assert structure.references and {each.removeprefix("#") for each in structure.references} <= set(structure.ids)


@pytest.mark.parametrize("target", ["bm1684", "nvdla-small", "nvdla-full"])
def test_programs_for_two_targets_are_compared(target: str, digits: Digits, tmp_path: Path) -> None:
    npuc("compile", digits.model, "--target", target, "--calibration", digits.few, "-o", tmp_path / "t.npu").done()
    for number, pair in enumerate(((digits.program, tmp_path / "t.npu"), (tmp_path / "t.npu", digits.program))):
        page = tmp_path / f"{number}.html"
        npuc("diff", *pair, "-o", page).done()
        assert ("W 1, " in page.read_text(encoding="utf-8")) == (target == "bm1684")


def test_what_changed_is_what_the_text_says(page: Path, digits: Digits) -> None:
    report = npuc("diff", digits.program, page.parent / "large.npu", "--json").json
    text = page.read_text(encoding="utf-8")
    assert report["layers"] and text.count("<tr data-layer") == len(report["layers"])
    assert f"{report['unchanged_layers']} unchanged" in text
    plain = unescape(re.sub(r"<[^>]+>", "", text))
    assert all(line in plain for group in report["layers"] for line in (*group["removed"], *group["added"]))
    before, after = report["totals"]["memory.fmap.capacity_bytes"]
    assert (
        f"{before:,}" in plain and f"{after:,}" in plain and f"{100 * (after - before) / before:+.1f} %" in plain
    )


def test_a_program_beside_itself_has_two_networks_and_no_changes(digits: Digits, tmp_path: Path) -> None:
    npuc("diff", digits.program, digits.program, "-o", tmp_path / "d.html").done()
    text = (tmp_path / "d.html").read_text(encoding="utf-8")
    assert "Both are the same program" in text and text.count('class="scroll graph"') == 2
    assert "<tr data-layer" not in text


def test_names_are_text_and_never_markup(digits: Digits, tmp_path: Path) -> None:
    model = onnx.load(digits.model)
    for node in model.graph.node:
        node.name = f"<script>alert({node.name!r})</script>"
    onnx.save(model, tmp_path / "m.onnx")
    for number in "01":
        options = ("--machine", "large") if number == "1" else ()
        compiled(tmp_path / "m.onnx", tmp_path / f"<i>{number}", *options).done()
    npuc("diff", tmp_path / "<i>0", tmp_path / "<i>1", "-o", tmp_path / "d.html").done()
    text = (tmp_path / "d.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text and "<i>" not in text and "&lt;script&gt;alert" in text


def test_what_cannot_be_written_is_refused(digits: Digits, tmp_path: Path) -> None:
    npuc("diff", digits.program, digits.program, "-o", tmp_path / "missing" / "d.html").refused("E506")


@NEEDS_CHROMIUM
def test_a_click_chooses_a_layer_in_both_networks(page: Path, tmp_path: Path) -> None:
    clicking = tmp_path / "clicking.html"
    clicking.write_text(page.read_text(encoding="utf-8").replace("</body>", CLICKS), encoding="utf-8")
    (told,) = re.findall(r'data-found="([^"]*)"', opened(clicking, tmp_path))
    first, second, factors = json.loads(unescape(told))
    assert first == second
    where, rows, link = first
    assert (where, rows) == ([True, True], 1) and link.startswith("#layer=")
    assert factors == pytest.approx([1.25, 1.25])


@NEEDS_CHROMIUM
def test_a_link_chooses_its_layer_when_the_page_opens(page: Path, digits: Digits, tmp_path: Path) -> None:
    (group, *_) = npuc("diff", digits.program, page.parent / "large.npu", "--json").json["layers"]
    name = " + ".join(group["layers"][0])
    asks = "document.body.dataset.found = document.querySelector('tr.chosen td').textContent;"
    asking = tmp_path / "asking.html"
    asking.write_text(page.read_text("utf-8").replace("</body>", f"<script>{asks}</script></body>"), "utf-8")
    (told,) = re.findall(r'data-found="([^"]*)"', opened(asking, tmp_path / "profile", f"#layer={quote(name)}"))
    assert group["layers"][0][0] in unescape(told)


@NEEDS_CHROMIUM
def test_networks_of_equal_programs_are_pale(digits: Digits, tmp_path: Path) -> None:
    npuc("diff", digits.program, digits.program, "-o", tmp_path / "d.html").done()
    asks = "document.body.dataset.fill = getComputedStyle(document.querySelector('.box rect')).fill;"
    page = tmp_path / "d.html"
    page.write_text(page.read_text().replace("</body>", f"<script>{asks}</script></body>"))
    (fill,) = re.findall(r'data-fill="([^"]*)"', opened(page, tmp_path / "profile"))
    assert fill not in ("", "rgb(0, 0, 0)", "none")
