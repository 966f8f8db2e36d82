"""A hook of mkdocs: rows of two pages are anchors, named by their first cell; wide tables and code scroll."""

from __future__ import annotations

import re
from typing import Any

ANCHORED = {"decisions.md", "errors.md"}


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The page's body with anchors (errors.html#E101, decisions.html#dilation) and boxes around tables."""
    if page.file.src_uri in ANCHORED:
        known = set(re.findall(r'id="([^"]+)"', html))

        def anchored(row: re.Match[str]) -> str:
            text = re.sub(r"<[^>]+>|&\w+;", "", row[1])
            name = base = re.sub(r"\W+", "-", text if re.fullmatch(r"[EW]\d+", text) else text.lower()).strip("-")
            number = 2
            while name in known:
                name, number = f"{base}-{number}", number + 1
            known.add(name)
            return f'<tr id="{name}">\n<td><a class="here" href="#{name}">{row[1]}</a></td>'

        html = re.sub(r"<tr>\s*<td>(.*?)</td>", anchored, html, flags=re.DOTALL)
    return html.replace("<table", '<div class="wide"><table').replace("</table>", "</table></div>")


def on_post_page(output: str, **_: Any) -> str:
    """The page with the style sheets that the theme's switch of colours expects, though nothing is highlighted."""
    return output.replace("</head>", '<style id="hljs-light"></style><style id="hljs-dark"></style></head>')


on_post_template = on_post_page
