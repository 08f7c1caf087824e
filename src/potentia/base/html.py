"""HTML for notebooks and the report page, escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, *content: Any, **attributes: Any) -> Markup:
    """An element; text is escaped, Markup is not.

    Attributes that are None are left out; an underscore in a name stands for a hyphen, one at its end for nothing.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(part if isinstance(part, Markup) else escape(str(part)) for part in content)
    return Markup(f"<{name}{shown}>{inside}</{name}>")


def facts_table(caption: str, facts: Mapping[str, Any]) -> Markup:
    """Names beside values."""
    lines = [
        tag("tr", tag("th", name, scope="row", style="text-align: left"), tag("td", value))
        for name, value in facts.items()
    ]
    return tag("table", tag("caption", caption), tag("tbody", *lines))
