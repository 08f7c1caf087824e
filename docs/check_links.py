"""Check links inside the built site and in Markdown files: `python docs/check_links.py SITE FILE.md ...`.

A link is right if the file is there and, with #anchor, has an element of that identifier. Links to other sites are not
followed.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the identifiers of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the base class."""
        given = {key: value for key, value in attrs if value}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        self.links += [given[key] for key in ("href", "src") if key in given]


@cache
def parsed(path: Path) -> Page:
    """A page of the site."""
    return Page(path.read_text(encoding="utf-8"))


def broken(site: Path, pages: list[Path]) -> list[str]:
    """Links of the site and of Markdown files that are broken."""
    found = []
    for path in sorted(site.rglob("*.html")):
        for link in parsed(path).links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc or target.is_dir():
                continue
            if not target.is_file():
                found.append(f"{path}: {link}")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in parsed(target).anchors:
                found.append(f"{path}: {link} (no such anchor)")
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if not parts.scheme and parts.path and not (page.parent / unquote(parts.path)).exists():
                found.append(f"{page}: {link}")
    return found


if __name__ == "__main__":
    errors = broken(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    print("\n".join(errors) or "all internal links are valid")
    sys.exit(bool(errors))
