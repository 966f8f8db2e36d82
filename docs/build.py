"""Makes a small static site of docs/*.md: python docs/build.py -o DIR (needs the extra `docs`).

Every link of a page is checked before anything is written: to a page, a heading of one, or a file of docs/. The
site needs no network and opens from disk.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

DOCS = Path(__file__).resolve().parent
STYLES = (DOCS.parent / "npuc" / "page" / "style.css", DOCS / "site.css")
FRONT = "index"


@dataclass(frozen=True)
class Page:
    """A parsed page: its name without suffix, its title and its headings by anchor."""

    name: str
    tokens: tuple[Token, ...]
    headings: Mapping[str, str]

    @property
    def title(self) -> str:
        """The text of its first heading; its name where it has none."""
        return next(iter(self.headings.values()), self.name)

    @property
    def links(self) -> Iterator[Token]:
        """Every link in its text."""
        for token in self.tokens:
            yield from (child for child in token.children or () if child.type == "link_open")


def parser() -> MarkdownIt:
    """CommonMark with tables, which is what the pages are written in."""
    return MarkdownIt("commonmark").enable("table")


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it.

    >>> anchor("EasyNPU: `--isa` and words")
    'easynpu---isa-and-words'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page(name: str, text: str) -> Page:
    """The page of a Markdown text; a repeated heading gets a numbered anchor."""
    tokens = parser().parse(text)
    headings: dict[str, str] = {}
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            title = "".join(child.content for child in inline.children or ())
            stem, same = anchor(title), sum(anchor(each) == anchor(title) for each in headings.values())
            found = f"{stem}-{same}" if same else stem
            opening.attrSet("id", found)
            headings[found] = title
    return Page(name, tuple(tokens), headings)


def broken(pages: Mapping[str, Page], folder: Path) -> list[str]:
    """Every link that leads nowhere, with its page."""
    return [
        f"{each.name}.md: broken link {link.attrs['href']}: {reason}"
        for each in pages.values()
        for link in each.links
        if (reason := _refusal(each, str(link.attrs["href"]), pages, folder))
    ]


def _refusal(origin: Page, href: str, pages: Mapping[str, Page], folder: Path) -> str | None:
    """Why a link leads nowhere; None where it leads somewhere, or out into the network."""
    parts = urlsplit(href)
    if parts.scheme:
        return None
    if parts.path and not parts.path.endswith(".md"):
        return None if (folder / parts.path).is_file() and "/" not in parts.path else "no such file in docs/"
    name = parts.path.removesuffix(".md") or origin.name
    if name not in pages:
        return "no such page"
    if parts.fragment and parts.fragment not in pages[name].headings:
        return f"the page has no heading '{parts.fragment}'"
    return None


def navigation(front: Page) -> list[tuple[str, list[str]]]:
    """The sections of the front page with the pages that each links to, in order."""
    found: list[tuple[str, list[str]]] = []
    for token, inline in pairwise(front.tokens):
        if token.type == "heading_open" and token.tag == "h2":
            found.append((inline.content, []))
        for link in (child for child in token.children or () if child.type == "link_open" and found):
            linked = re.fullmatch(r"([\w-]+)\.md", str(link.attrs["href"]))
            found[-1][1].extend(linked.groups() if linked else ())
    return found


def site(folder: Path) -> dict[str, bytes]:
    """The files of the site by name. Raises ValueError with every broken link, and pages the front page lacks."""
    pages = {path.stem: page(path.stem, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.md"))}
    sections = navigation(pages[FRONT])
    listed = {FRONT, *(name for _, names in sections for name in names)}
    wrong = broken(pages, folder) + [f"{name}.md is not linked from {FRONT}.md" for name in pages.keys() - listed]
    if wrong:
        raise ValueError("\n".join(sorted(wrong)))
    linked = {str(link.attrs["href"]) for each in pages.values() for link in each.links}
    files = {href: (folder / href).read_bytes() for href in sorted(linked) if (folder / href).is_file()}
    found = {name: data for name, data in files.items() if not name.endswith(".md")}
    found["style.css"] = b"".join(path.read_bytes() for path in STYLES)
    template = Environment(loader=FileSystemLoader(DOCS), autoescape=True).get_template("page.html")
    for each in pages.values():
        html = template.render(page=each, pages=pages, sections=sections, body=Markup(_body(each)))
        found[f"{each.name}.html"] = html.encode()
    return found


def _body(each: Page) -> str:
    """The page's HTML: links lead to .html files, and wide tables scroll by themselves."""
    markdown = parser()
    html = str(markdown.renderer.render(list(each.tokens), markdown.options, {}))
    html = re.sub(r'href="([\w-]+)\.md([#"])', r'href="\1.html\2', html)
    return html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def main() -> int:
    """Writes the site; says what is wrong and gives 1 where links are broken or nothing can be written."""
    arguments = argparse.ArgumentParser(description="Make a static site of docs/*.md.")
    arguments.add_argument("-o", "--output", type=Path, required=True, help="The site's folder.")
    output: Path = arguments.parse_args().output
    try:
        files = site(DOCS)
        output.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (output / name).write_bytes(data)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(files)} files -> {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
