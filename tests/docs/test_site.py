"""docs/build.py: the site has every page, and a link that leads nowhere is an error."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_build"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _folder(tmp_path: Path, front: str, other: str = "# Other\n\n## A heading\n\n## A heading\n") -> Path:
    (tmp_path / "index.md").write_text(front, encoding="utf-8")
    (tmp_path / "other.md").write_text(other, encoding="utf-8")
    return tmp_path


def test_the_site_has_every_page_and_its_links_lead_to_its_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "build.py", "-o", tmp_path / "site"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (tmp_path / "site").iterdir()}
    assert written >= {f"{path.stem}.html" for path in DOCS.glob("*.md")} | {"style.css", "program-schema.json"}
    for path in (tmp_path / "site").glob("*.html"):
        html = path.read_text(encoding="utf-8")
        links = re.findall(r'(?:href|src)="([^"#]+)', html)
        assert {link for link in links if not link.startswith("http")} <= written, path.name
        assert not re.search(r'(?:src|<link[^>]*href)="https?:', html), "the site needs no network"


@pytest.mark.parametrize(
    "good", ["other.md", "other.md#a-heading", "other.md#a-heading-1", "#front", "https://x.org"]
)
def test_links_to_pages_and_headings_are_fine(build: ModuleType, tmp_path: Path, good: str) -> None:
    front = f"# Front\n\n## Part\n\n[a]({good}) [b](other.md)\n"
    html = build.site(_folder(tmp_path, front))["index.html"].decode()
    assert f'href="{good.replace(".md", ".html")}"' in html


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("others.md", "no such page"),
        ("other.md#a-headin", "no heading 'a-headin'"),
        ("other.md#a-heading-2", "no heading"),
        ("#part-2", "no heading"),
        ("missing.json", "no such file"),
        ("../README.md", "no such page"),
    ],
)
def test_a_broken_link_is_named_with_its_page(build: ModuleType, tmp_path: Path, bad: str, reason: str) -> None:
    folder = _folder(tmp_path, "# Front\n\n## Part\n\n[b](other.md)\n", f"# Other\n\n## A heading\n\n[a]({bad})\n")
    with pytest.raises(ValueError, match=reason) as error:
        build.site(folder)
    assert f"other.md: broken link {bad}: " in str(error.value)


def test_a_page_that_the_front_page_does_not_list_is_an_error(build: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"other\.md is not linked from index\.md"):
        build.site(_folder(tmp_path, "# Front\n"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "site").write_text("a file")
    command = [sys.executable, DOCS / "build.py", "-o", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "site" in done.stderr and "Traceback" not in done.stderr


def test_links_in_code_are_no_links(build: ModuleType, tmp_path: Path) -> None:
    front = "# Front\n\n## Part\n\n[b](other.md) `[a](nowhere.md)`\n\n```text\n[a](nowhere.md)\n```\n"
    assert b"nowhere.md" in build.site(_folder(tmp_path, front))["index.html"]


def test_the_same_pages_give_the_same_bytes(build: ModuleType) -> None:
    assert build.site(DOCS) == build.site(DOCS)
