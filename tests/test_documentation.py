"""The pages that derive from the code are up to date, and what the documentation names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.files import script

ROOT = Path(__file__).resolve().parents[1]
generate = script("docs/generate.py")


@pytest.mark.parametrize("page", sorted(generate.PAGES))
def test_page_is_what_the_code_says(page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == generate.PAGES[page]() + "\n", "run python docs/generate.py"


PROSE = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*/*.md"))]


def _anchors(page: Path) -> set[str]:
    """The fragments of a page: its headings as GitHub names them, and its ids."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    names = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return names | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8"))
    for name, _, anchor in (link.partition("#") for link in links):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in _anchors(target), f"{name}#{anchor}"


TRACE = (ROOT / "docs" / "easynpu-trace.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TRACE.splitlines() if line.startswith("| ")][
    1:
]


def test_the_trace_has_every_heading_of_the_easynpu_document_in_its_order(shared: Path) -> None:
    document = (shared / "seeds" / "easynpu.txt").read_text(encoding="utf-8")
    headings = re.findall(r"^#{2,} *(.+?)\s*$", document, re.MULTILINE)
    assert [heading for section, *_ in ROWS for heading in section.split(", ")] == headings


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_trace_names_code_and_tests_that_exist(row: list[str]) -> None:
    _, _, code, tests = row
    for name in re.split(r"[,;] ", code):
        kind, quoted = (re.findall(r"^(\w+) `(\w+)`$", name) or [("", "")])[0]
        path, _, attribute = name.partition(".")
        if quoted:
            path, attribute = kind, quoted
        stem = f"{Path(path).name}.py"
        rooms = ROOT / "targets" / "easynpu", ROOT / "passes", ROOT / "npuc"
        found = [place for room in rooms for place in room.rglob(stem)]
        assert found, name
        assert any(re.search(rf"\b{attribute}\b", place.read_text(encoding="utf-8")) for place in found), name
    for name in tests.split(", "):
        assert (ROOT / "tests" / f"{name}.py").is_file() or (ROOT / "tests" / name).is_dir(), name


def test_no_heading_of_the_site_begins_with_a_digit() -> None:
    """Its scripts look headings up by their fragments, as selectors: those must begin with a letter."""
    pages = {page.name: _anchors(page) for page in PROSE if page.parent.name == "docs"}
    assert [(page, each) for page, names in pages.items() for each in names if not each[:1].isalpha()] == []


SOURCES = {
    "/" + str(path.relative_to(ROOT).with_suffix("")).removesuffix("/__init__"): path.read_text(encoding="utf-8")
    for room in ("npuc", "passes", "targets", "tests")
    for path in (ROOT / room).rglob("*")
    if path.suffix in (".py", ".c")
}


def decided() -> Iterator[str]:
    """What stands in the last column of the tables of decisions, under the heading "code"."""
    names = False
    for line in (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").splitlines():
        last = line.strip().rstrip("|").rpartition("|")[2].strip()
        names = line.startswith("|") and (names or last == "code")
        if names and last not in ("code", "--", "-"):
            yield from re.split(r"[,;] ", last)


def stands(name: str) -> bool:
    """Whether a module has this name, or one of that name has the rest of it: `package.module.attribute`."""
    words = re.sub(r"\.(py|c)$", "", name).split(".")
    return any(
        path.endswith("/" + "/".join(words[:count]))
        and all(re.search(rf"\b{word}\b", text) for word in words[count:])
        for count in range(1, len(words) + 1)
        for path, text in SOURCES.items()
    )


def test_decisions_name_code_that_exists() -> None:
    names = [*decided()]
    assert len(names) > 200
    assert [name for name in names if not stands(name)] == []
