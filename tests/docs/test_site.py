"""The pages as a site: every link leads somewhere, every page is linked, and the site needs no network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / ".ci" / "mkdocs.yml"


def build(settings: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", settings, "-d", folder]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_site_has_every_page_and_needs_no_network(tmp_path: Path) -> None:
    done = build(SETTINGS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= {p.name for p in tmp_path.iterdir()}
    assert '<tr id="E101">' in (tmp_path / "errors.html").read_text(encoding="utf-8")
    assert '<tr id="dilation">' in (tmp_path / "decisions.html").read_text(encoding="utf-8")
    assert "winograd" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8").lower()
    for path in tmp_path.glob("*.html"):
        assert not re.search(r'(?:src|<link[^>]*href)="https?:', path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("link", ["missing.md", "cli.md#no-such-heading", "missing.json"])
def test_a_link_that_leads_nowhere_is_an_error(link: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / ".ci").mkdir()
    for file in (SETTINGS, SETTINGS.with_name("site.py")):
        shutil.copy(file, tmp_path / ".ci")
    page = tmp_path / "docs" / "models.md"
    page.write_text(page.read_text(encoding="utf-8") + f"\n[away]({link})\n", encoding="utf-8")
    done = build(tmp_path / ".ci" / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0 and "models.md" in done.stderr + done.stdout


def test_the_front_page_lists_every_page() -> None:
    front = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"\(([\w-]+\.md)", front))
