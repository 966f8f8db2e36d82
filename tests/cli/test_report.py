"""`npuc report`: one file, without network, that a browser opens without complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.cli.process import Digits, npuc

VOID = {"meta", "link", "br", "hr", "img", "input"}


class _Structure(HTMLParser):
    """Open elements, and everything that is referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for key, value in attrs if key in ("src", "href", "action", "data")]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "digits.html"
    npuc("report", digits.program, "-o", path, "--model", digits.model, "--data", digits.few).done()
    return path


def test_the_page_is_whole_and_refers_to_nothing_outside_itself(page: Path) -> None:
    structure = _Structure()
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
    npuc("compile", tmp_path / "<b>.onnx", "--target", "easynpu", "-o", tmp_path / "o").done()
    npuc("report", tmp_path / "o", "-o", tmp_path / "p.html").done()
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and "<h1>&lt;b&gt;.onnx" in text


def test_what_cannot_be_written_is_refused(digits: Digits, tmp_path: Path) -> None:
    npuc("report", digits.program, "-o", tmp_path / "missing" / "p.html").refused("E506")
    npuc("report", tmp_path, "-o", tmp_path / "p.html").refused("E501")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_opens_it_without_an_error(page: Path, tmp_path: Path) -> None:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    done = subprocess.run(
        ["chromium", *flags, f"--user-data-dir={tmp_path}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    # the script has run: the first way of colouring is chosen, and fields have their meanings
    assert 'aria-pressed="true"' in done.stdout and 'title="Hk, bits 63:56' in done.stdout
