"""`npuc report`: one file, without network, that a browser opens without complaint."""

from __future__ import annotations

import csv
import json
import re
from html import unescape
from pathlib import Path

import pytest

from npuc.models import MODELS
from tests.cli.pages import NEEDS_CHROMIUM, Structure, opened
from tests.cli.process import SYNTHETIC, Digits, npuc
from tests.images.making import network, photos


@pytest.fixture(scope="module")
def page(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "digits.html"
    npuc("report", digits.program, "-o", path, "--model", digits.model, "--data", digits.few).done()
    return path


def test_the_page_is_whole_and_refers_to_nothing_outside_itself(page: Path) -> None:
    structure = Structure()
    structure.feed(page.read_text(encoding="utf-8"))
    assert structure.open == [] and len(structure.ids) == len(set(structure.ids))
    assert structure.references and {each.removeprefix("#") for each in structure.references} <= set(structure.ids)
    assert "@import" not in page.read_text() and "url(" not in page.read_text()


def test_every_layer_and_every_instruction_is_on_the_page(page: Path, digits: Digits) -> None:
    text = re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
    manifest = npuc("dump", digits.program, "--json").json["instructions"]
    assert manifest and all("".join(each["text"].split()) in "".join(text.split()) for each in manifest)
    layers = npuc("verify", digits.model, digits.program, "--data", digits.few, "--json").json["layers"]
    assert f"{layers[0]['sqnr_db']:.1f}" in text


def test_the_same_program_gives_the_same_bytes(digits: Digits, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        npuc("report", digits.program, "-o", tmp_path / name).done()
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_names_are_text_and_never_markup(digits: Digits, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(digits.model)
    for node in model.graph.node:
        node.name = f"<script>alert({node.name!r})</script>"
    onnx.save(model, tmp_path / "<b>.onnx")
    npuc("compile", *SYNTHETIC, tmp_path / "<b>.onnx", "--target", "easynpu", "-o", tmp_path / "o").done()
    npuc("report", tmp_path / "o", "-o", tmp_path / "p.html").done()
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and "<h1>&lt;b&gt;.onnx" in text


def test_pictures_stand_beside_what_the_program_says_of_them(tmp_path: Path) -> None:
    folder, model, out = photos(tmp_path), network(tmp_path), tmp_path / "o"
    (folder / "0.png").rename(folder / "<b>.png")
    npuc("compile", model, "--target", "easynpu", "--input", "none", "--calibration", folder, "-o", out).done()
    npuc("report", out, "-o", tmp_path / "p.html", "--data", folder).done()
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 8 and "&lt;b&gt;.png" in text and "<b>.png" not in text
    assert "7.webp" in text and text.count(" %  0") == 8


def test_what_cannot_be_written_is_refused(digits: Digits, tmp_path: Path) -> None:
    npuc("report", digits.program, "-o", tmp_path / "missing" / "p.html").refused("E506")
    npuc("report", tmp_path, "-o", tmp_path / "p.html").refused("E501")
    assert list(tmp_path.iterdir()) == []


VIEWS = {
    "network": ".box",
    "layers": "tr",
    "timeline": "g",
    "memory": "g",
    "roofline": "g",
    "instructions": "pre span",
}
"""Every view of a layer, and what in it a user clicks."""
CLICKS = """<script>{
document.querySelector('nav a[href="#instructions"]').click();
const found = {}, chosen = () => [...document.querySelectorAll(".chosen")];
for (const [view, what] of Object.entries(VIEWS)) {
  const inside = `#${view} [data-layer="1"]`;
  const element = document.querySelector(`${inside} ${what}`) ?? document.querySelector(inside);
  element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const layers = new Set(chosen().map((each) => each.dataset.layer));
  found[view] = [[...layers], [...new Set(chosen().map((each) => each.closest("section").id))].sort()];
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  found[view].push(chosen().length);
}
document.querySelector('[data-zoom="2"]').click();
const drawings = [...document.querySelectorAll(".wide svg")];
found.stretched = drawings.map((each) => each.width.baseVal.value / each.viewBox.baseVal.width);
const visible = () => [...document.querySelectorAll(".pass")].findIndex((each) => !each.hidden);
found.passes = [visible()];
for (const at of ["1", "1", "-1", "-1", "-1"]) {
  document.querySelector(`[data-step="${at}"]`).click();
  found.passes.push(visible());
}
document.querySelector('nav a[href="#layers"]').click();
const heading = document.querySelector(".sortable th.n");
heading.focus();
heading.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
found.sorted = heading.getAttribute("aria-sort");
const box = document.querySelector("#network .box"), drawing = document.querySelector("#network svg");
const heights = [drawing.viewBox.baseVal.height];
for (const times of [1, 2]) {
  box.querySelector(".fold").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  heights.push(drawing.viewBox.baseVal.height);
}
found.heights = heights;
const finder = document.getElementById("search"), told = document.getElementById("told"), links = [];
document.dispatchEvent(new KeyboardEvent("keydown", { key: "/" }));
const focused = document.activeElement === finder;
for (const name of NAMES) {
  finder.value = name;
  finder.dispatchEvent(new Event("input"));
  finder.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  links.push([decodeURIComponent(location.hash), told.querySelector("h3").textContent]);
}
document.querySelector("#instructions pre span").click();
links.push(told.querySelector("small").textContent);
document.getElementById("close").click();
links.push(document.body.classList.contains("open"), location.hash);
found.links = [focused, ...links];
document.body.dataset.found = JSON.stringify(found);
}</script></body>"""


@NEEDS_CHROMIUM
def test_a_selection_is_seen_found_and_linked_in_every_view(page: Path, digits: Digits, tmp_path: Path) -> None:
    clicking = tmp_path / "clicking.html"
    manifest = json.loads((digits.program / "manifest.json").read_text())
    layer, node = manifest["report"]["layers"][-1]["name"], manifest["account"][0]
    names = [layer, node["node"], next(name for name in node["tensors"] if name != layer)]
    clicks = CLICKS.replace("VIEWS", json.dumps(VIEWS)).replace("NAMES", json.dumps(names))
    clicking.write_text(page.read_text(encoding="utf-8").replace("</body>", clicks), encoding="utf-8")
    shown = opened(clicking, tmp_path)
    # the script has run: the first way of colouring is chosen, and fields have their meanings
    assert 'aria-pressed="true"' in shown and 'title="Hk, bits 63:56' in shown
    (told,) = re.findall(r'data-found="([^"]*)"', shown)
    found = json.loads(unescape(told))
    assert set(found.pop("stretched")) == {2}
    assert found.pop("passes") == [0, 1, 1, 0, 0, 0]
    assert found.pop("sorted") == "descending"
    closed, unfolded, again = found.pop("heights")
    assert closed == again < unfolded
    focused, *links, instruction, told, left = found.pop("links")
    view = "#layers"
    assert focused and links == [[f"{view}&layer={layer}", layer], *[[f"{view}&node={names[1]}", names[1]]] * 2]
    assert (instruction, told, left) == ("instruction 0", False, view)
    assert found.keys() == VIEWS.keys()
    for layers, sections, left in found.values():
        assert (layers, left) == (["1"], 0) and set(sections) >= VIEWS.keys()


def test_layers_as_a_table_and_the_report_as_json(digits: Digits, tmp_path: Path) -> None:
    report = json.loads((digits.program / "manifest.json").read_text())["report"]
    layers = report["layers"]
    npuc("report", digits.program, "-o", tmp_path / "l.csv", "--format", "csv").done()
    with (tmp_path / "l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [layer["name"] for layer in layers]
    assert [row["nodes"].split("; ") for row in rows] == [layer["nodes"] for layer in layers]
    assert [int(row["cycles"]) for row in rows] == [layer["cycles"] for layer in layers]
    assert sum(float(row["share"]) for row in rows) == pytest.approx(100)
    npuc("report", digits.program, "-o", tmp_path / "r.json", "--format", "json", "--model", digits.model).done()
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["cycles"] == report["cycles"] and found["layers"][0]["sqnr_db"] > 10


def test_layers_of_bm1684_in_int8_have_their_errors(digits: Digits, tmp_path: Path) -> None:
    program, table = tmp_path / "b.npu", tmp_path / "l.csv"
    target = ("--target", "bm1684", "--precision", "int8", "--proof", "off", "-O0")
    npuc("compile", digits.model, *target, "--calibration", digits.calibration, "-o", program).done()
    npuc("report", program, "-o", table, "--format", "csv", "--model", digits.model, "--data", digits.few).done()
    with table.open(newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert all(float(rows[f"{name}/int8"]["sqnr_db"]) > 20 for name in ("n1_Relu", "n9_Relu", "n11_Gemm"))


def test_a_long_listing_is_cut_and_the_page_says_so(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npuc.reports.page.MOST_LISTED", 3)
    npuc("report", digits.program, "-o", tmp_path / "r.html").done()
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    count = len(npuc("dump", digits.program, "--json").json["instructions"])
    assert f"{count - 3} more lines are left out" in text
    section = text[text.index('id="instructions"') : text.index('id="timeline"')]
    assert sum(len(each.splitlines()) for each in re.findall(r"<pre[^>]*>([^<]*)</pre>", section)) == 3


def test_the_report_of_a_program_with_thousands_of_registers_stays_small(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(MODELS["mobilenet_v1_025"]().SerializeToString())
    fast = ("--target", "nvdla-small", "-O0", "--proof", "off")
    npuc("compile", *SYNTHETIC, tmp_path / "m.onnx", *fast, "-o", tmp_path / "m.npu").done()
    npuc("report", tmp_path / "m.npu", "-o", tmp_path / "m.html").done()
    assert (tmp_path / "m.html").stat().st_size < 2_000_000


def test_the_passes_are_told_and_the_graph_behind_each_is_drawn_of_the_model(page: Path, digits: Digits) -> None:
    text = page.read_text(encoding="utf-8")
    rewrites = json.loads((digits.program / "graph.json").read_text())["rewrites"]
    names = list(dict.fromkeys(each["pass"] for each in rewrites))
    assert text.count("data-pass=") == len(names) >= 2
    plain = unescape(text)
    assert all(each["text"].removeprefix(f"{each['pass']}: ") in plain for each in rewrites)
    section = text[text.index('id="passes"') : text.index('id="layers"')]
    assert (
        section.count('class="scroll graph"') == len(names) and "--new:100%" in section and "--new:0%" in section
    )


def test_passes_that_do_other_than_the_program_tells_are_not_drawn(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npuc.driver.rewrites", lambda *_: ["another rewrite"])
    npuc("report", digits.program, "-o", tmp_path / "r.html", "--model", digits.model, "--data", digits.few).done()
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    section = text[text.index('id="passes"') : text.index('id="layers"')]
    assert "<li" in section and "graph" not in section
