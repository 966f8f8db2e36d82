"""Pages from templates: one file each, with embedded style and script."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from npuc.text.escaping import printed
from npuc.text.terminal import count


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The page of a template in this folder; text is escaped, Markup is not."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    loader = FunctionLoader(_asset)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_finalized
    )
    environment.filters["count"] = count
    style, script = (Markup(_asset(name)) for name in ("style.css", "script.js"))
    return environment.get_template(template).render({**values, "style": style, "script": script})


def _finalized(value: object) -> object:
    """A value as a template prints it; invisible characters in strings are escaped."""
    return printed(value) if type(value) is str else value


def _asset(name: str) -> str:
    return files("npuc.page").joinpath(name).read_text(encoding="utf-8")
