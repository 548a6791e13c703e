"""Pieces of a page: everything a browser, a printer and a screen reader need, nothing to load, no script."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

MARK = "<meta name='generator' content='tacit'>"  # by which a page of ours is known


@dataclass(frozen=True)
class Line:
    """A row of a table: what it is about, its cells, and whether it leads."""

    head: str
    cells: Sequence[str]
    leads: bool = False


def document(title: str, opening: str, sections: Sequence[str]) -> str:
    """A whole page: heading, what comes first, a way to each of many sections, and the sections that say something."""
    style = files("tacit.report").joinpath("page.css").read_text(encoding="utf-8")
    there = [section for section in sections if section]
    parts = [f"<h1>{escape(title)}</h1>", opening, _contents(there), *there]
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
    """A heading and what is below it; nothing where there is nothing to say."""
    name = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
    return f"<h2 id='{name}'>{escape(title)}</h2>\n{body}" if body else ""


def part(title: str, body: str) -> str:
    """A part of a section; its heading is left out where it has no title, and all of it where it says nothing."""
    return f"<h3>{escape(title)}</h3>\n{body}" if body and title else body


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; nothing where there is no text."""
    own = f" class='{kind}'" if kind else ""
    return f"<p{own}>{escape(text)}</p>" if text else ""


def bullets(lines: Iterable[str]) -> str:
    """A list; nothing where it is empty."""
    items = "".join(f"<li>{escape(line)}</li>\n" for line in lines)
    return f"<ul>\n{items}</ul>" if items else ""


def code(text: str) -> str:
    """Text to copy; long lines are scrolled, also by keyboard."""
    return f"<pre tabindex='0'><code>{escape(text)}</code></pre>" if text else ""


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """Something to unfold."""
    return f"<details{' open' if opened else ''}>\n<summary>{escape(summary)}</summary>\n{body}\n</details>"


def table(caption: str, heads: Sequence[str], lines: Iterable[Line]) -> str:
    """A table that is scrolled sideways where it is too wide; the first column says what a row is about."""
    top = "".join(f"<th scope='col'>{escape(head)}</th>" for head in heads)
    body = ""
    for line in lines:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line.cells)
        kind = " class='leads'" if line.leads else ""
        body += f"<tr{kind}><th scope='row'>{escape(line.head)}</th>{cells}</tr>\n"
    return (
        f"<div class='scroll' role='region' aria-label='Table: {escape(caption)}' tabindex='0'>\n"
        f"<table>\n<caption>{escape(caption)}</caption>\n"
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>"
    )


def figure(svg: str, spoken: str, caption: str, kind: str = "") -> str:
    """A picture with its caption; who does not see it is told what it shows."""
    own = f" class='{kind}'" if kind else ""
    told = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return f"<figure{own}>\n<div role='img' aria-label='{escape(spoken)}'>\n{svg}</div>\n{told}</figure>"
