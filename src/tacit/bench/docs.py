"""Tables in pages of documentation, from the results that are kept and from nothing else.

A page holds `<!-- bench: fedsiam-table5-mnist -->` and `<!-- end bench -->`, each on a line of its own; the table is
put between them. `-quick` at the end of the name means the results of the reduced scale.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tacit.bench import cells, files, formats, keep, tables
from tacit.errors import TacitError
from tacit.report.files import replacing

BLOCK = re.compile(r"^<!-- bench: (?P<name>\S+) -->\n(?P<old>.*?)^<!-- end bench -->$", re.MULTILINE | re.DOTALL)
OPEN = re.compile(r"^<!-- bench: \S+ -->$", re.MULTILINE)


def fill(paths: Iterable[Path]) -> list[Path]:
    """Put the tables into these pages and the pages in these folders; those that changed."""
    changed = []
    for path in _pages(paths):
        old = _read(path)
        new = filled(old, path)
        if new != old:
            with replacing(path) as partial:
                partial.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def filled(text: str, path: Path) -> str:
    """The text of a page with its tables as the kept results give them."""
    if len(OPEN.findall(text)) != len(BLOCK.findall(text)):
        raise TacitError(f"{path} begins a table that has no end: add the line <!-- end bench --> below it")
    return BLOCK.sub(lambda found: f"<!-- bench: {found['name']} -->\n{table(found['name'])}<!-- end bench -->", text)


def table(name: str) -> str:
    """The kept table of a benchmark, or of its reduced scale, in Markdown."""
    quick = name.endswith("-quick") and name not in files.names()
    benchmark = files.find(name.removesuffix("-quick") if quick else name)
    found = cells.spots(benchmark, quick)
    kept = keep.results(benchmark, quick, found)
    return formats.to_markdown(tables.build(benchmark, found, kept.measured, quick))


def _pages(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise TacitError(f"there is no page {path}: give pages in Markdown, or folders of them")
        found += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"can not read {path}: {error}; give a page in Markdown") from error
