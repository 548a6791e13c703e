"""Tables in documentation pages, filled from the stored results only.

A page holds `<!-- bench: fedsiam-table5-mnist -->` and `<!-- end bench -->`, each on a separate line; the table goes
between them. `-quick` at the end of the name selects the results of the reduced scale; `claims` is the table of what
papers claim, with our verdicts.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tacit.bench import claim_table, claims, export, results, tables
from tacit.errors import TacitError
from tacit.storage import replacing

CLAIMS = "claims"
BLOCK = re.compile(r"^<!-- bench: (?P<name>\S+) -->\n(?P<old>.*?)^<!-- end bench -->$", re.MULTILINE | re.DOTALL)
OPEN = re.compile(r"^<!-- bench: \S+ -->$", re.MULTILINE)


def fill(paths: Iterable[Path]) -> list[Path]:
    """Fill the tables in these pages and in the pages of these folders; the pages that changed."""
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
    """The text of a page with its tables filled from the stored results."""
    if len(OPEN.findall(text)) != len(BLOCK.findall(text)):
        raise TacitError(
            f"a table in {path} has no end", "add the line <!-- end bench --> below it", code="bench.open-table"
        )
    return BLOCK.sub(lambda found: f"<!-- bench: {found['name']} -->\n{table(found['name'])}<!-- end bench -->", text)


def table(name: str) -> str:
    """The stored table of a benchmark, or of its reduced scale, or that of the claims, in Markdown."""
    if name == CLAIMS:
        return claim_table.to_markdown(claims.judge(claims.read(claims.path())))
    benchmark, quick, cells, stored = results.by_name(name)
    return export.to_markdown(tables.build(benchmark, cells, stored.measured, quick))


def _pages(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise TacitError(
                f"there is no page {path}", "give Markdown pages, or folders of them", code="bench.no-page"
            )
        found += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read {path}: {error}", "give a Markdown page", code="bench.broken-page") from error
