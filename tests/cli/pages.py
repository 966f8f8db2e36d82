"""Pages as a browser reads them: their structure, and what their scripts make of them."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

NEEDS_CHROMIUM = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Structure(HTMLParser):
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


def opened(page: Path, folder: Path, link: str = "") -> str:
    """The page as Chromium has it once its scripts have run, without a message on its console."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"]
    done = subprocess.run(
        ["chromium", *flags, f"--user-data-dir={folder}", "--dump-dom", page.as_uri() + link],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
