"""Parts of an HTML page for browsers, printers and screen readers, without scripts or external resources."""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from tacit.formatting import printable

MARK = "<meta name='generator' content='tacit'>"  # marks a page written by Tacit
FEW = 4  # columns that fit on a phone


def escape(text: str) -> str:
    """Text as HTML shows it, without control characters, since others may have written it."""
    return html.escape(printable(text, lines=True))


@dataclass(frozen=True)
class Line:
    """A row of a table: its heading, its cells, and whether it leads."""

    head: str
    cells: Sequence[str]
    leads: bool = False


def document(title: str, opening: str, sections: Sequence[str]) -> str:
    """A whole page: title, opening, links to the sections, and the sections that are not empty."""
    style = files("tacit.report").joinpath("page.css").read_text(encoding="utf-8")
    shown = [section for section in sections if section]
    parts = [f"<h1>{escape(title)}</h1>", opening, _contents(shown), *shown]
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f"{MARK}\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _contents(sections: Iterable[str]) -> str:
    heads = re.findall(r"^<h2 id='(.*?)'>(.*?)</h2>", "\n".join(sections), re.MULTILINE)
    links = " ".join(f"<li><a href='#{name}'>{title}</a></li>" for name, title in heads)
    return f"<nav aria-label='Contents'><ul>{links}</ul></nav>" if heads else ""


def section(title: str, body: str) -> str:
    """A section with its heading; empty if the body is."""
    name = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
    return f"<h2 id='{name}'>{escape(title)}</h2>\n{body}" if body else ""


def part(title: str, body: str) -> str:
    """A part of a section, with a heading if it has a title; empty if the body is."""
    return f"<h3>{escape(title)}</h3>\n{body}" if body and title else body


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; empty if there is no text."""
    attribute = f" class='{kind}'" if kind else ""
    return f"<p{attribute}>{escape(text)}</p>" if text else ""


def bullets(lines: Iterable[str]) -> str:
    """A list; empty if there are no lines."""
    items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
    return f"<ul>\n{items}</ul>" if items else ""


def code(text: str) -> str:
    """Text to copy; long lines scroll, also by keyboard."""
    return f"<pre tabindex='0'><code>{escape(text)}</code></pre>" if text else ""


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """A section that can be opened and closed."""
    return f"<details{' open' if opened else ''}>\n<summary>{escape(summary)}</summary>\n{body}\n</details>"


def table(caption: str, heads: Sequence[str], lines: Iterable[Line]) -> str:
    """A table; the first column holds the headings of the rows.

    Where it would be too wide, a row with more than a few cells becomes a block of named numbers. Roles are given in
    full, since browsers forget what is a row or a cell when it is laid out in another way.
    """
    top = "".join(f"<th scope='col' role='columnheader'>{escape(head)}</th>" for head in heads)
    body = ""
    for line in lines:
        named = zip(heads[1:], line.cells, strict=False)
        cells = "".join(f"<td role='cell' data-head='{escape(head)}'>{escape(cell)}</td>" for head, cell in named)
        kind = " class='leads'" if line.leads else ""
        body += f"<tr{kind} role='row'><th scope='row' role='rowheader'>{escape(line.head)}</th>{cells}</tr>\n"
    form = " class='wide'" if len(heads) > FEW else ""
    return (
        f"<div class='frame'>\n<table{form} role='table'>\n<caption>{escape(caption)}</caption>\n"
        f"<thead role='rowgroup'><tr role='row'>{top}</tr></thead>\n"
        f"<tbody role='rowgroup'>\n{body}</tbody>\n</table>\n</div>"
    )


def figure(svg: str, alt_text: str, caption: str, kind: str = "") -> str:
    """A picture with its caption, and a text for screen readers."""
    attribute = f" class='{kind}'" if kind else ""
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return f"<figure{attribute}>\n<div role='img' aria-label='{escape(alt_text)}'>\n{svg}</div>\n{below}</figure>"
