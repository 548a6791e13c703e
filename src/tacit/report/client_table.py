"""The data of each client as a table for a terminal: clients down, classes across, within a given width."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.text import Text

Counts = NDArray[np.int64]

EACH = 20  # up to this many clients have a row each; of more, only the first and the last do
FIRST, LAST = 6, 4
NARROWEST = 3  # characters a class name has at least
UNKNOWN = "?"
GAP = "…"  # in place of the clients without a row
SUMMARY = ("client", "labeled", "unlabeled", "classes", "largest class")


@dataclass(frozen=True)
class Row:
    """A line of the table; without cells, a horizontal rule."""

    head: str = ""
    cells: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Holdings:
    """Labeled and unlabeled samples of each client and class.

    Both arrays are (clients, classes + 1); the last column counts samples of unknown class.
    """

    labeled: Counts
    unlabeled: Counts
    classes: Sequence[str]

    @property
    def all(self) -> Counts:
        """All samples, labeled or not."""
        return self.labeled + self.unlabeled

    @property
    def unknown(self) -> bool:
        """Whether there are samples of unknown class."""
        return bool(self.all[:, -1].any())

    @property
    def mixed(self) -> bool:
        """Whether there are both labeled and unlabeled samples."""
        return bool(self.labeled.any() and self.unlabeled.any())

    @property
    def names(self) -> list[str]:
        """A heading for each column of counts."""
        return [*map(visible, self.classes), *[UNKNOWN] * self.unknown]

    @property
    def shown(self) -> list[int | None]:
        """The clients that have a row; None stands for those in between that do not."""
        clients = len(self.labeled)
        return [*range(clients)] if clients <= EACH else [*range(FIRST), None, *range(clients - LAST, clients)]


def table(holdings: Holdings, width: int) -> tuple[list[Text], str]:
    """One line per client if its classes fit, else two, else a summary of each; and what the numbers mean."""
    heads = ["client", *holdings.names, "total"]
    if lines := _fitted(heads, _one_line(holdings), width):
        return lines, _meaning(holdings, pairs=holdings.mixed) + _left_out(holdings, together=holdings.mixed)
    if holdings.mixed and (lines := _fitted(heads, _two_lines(holdings), width)):
        return lines, _meaning(holdings, pairs=False) + _left_out(holdings, together=True)
    return _fitted(SUMMARY, _summaries(holdings), 0), _class_sizes(holdings) + _left_out(holdings, together=False)


def disambiguate(names: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names cut to their widths but still distinct; if that is impossible, their numbers."""
    pairs = list(zip(names, widths, strict=True))
    for cut in (_start, _end):
        short = [cut(name, width) for name, width in pairs]
        if len(set(short)) == len(set(names)):
            return short
    return [str(number) for number in range(len(names))]


def headings(classes: Sequence[str], unknown: Sequence[str]) -> list[str]:
    """The names of all classes, those that the model does not have in parentheses."""
    outside = set(unknown)
    return [f"({name})" if name in outside else name for name in classes]


# --- the contents of the rows -----------------------------------------------------------------------------------------


def _one_line(holdings: Holdings) -> list[Row]:
    """`5/103` for 5 labeled and 103 unlabeled samples of a class, `103` without labeled ones."""
    labeled, unlabeled = _columns(holdings)

    def cells(client: int) -> list[str]:
        numbers = zip(labeled[client].tolist(), unlabeled[client].tolist(), strict=True)
        return [f"{a}/{b}" if a and holdings.mixed else str(a + b) for a, b in numbers]

    rows = [_gap(labeled) if client is None else Row(str(client), cells(client)) for client in holdings.shown]
    return [Row(), *rows, Row(), *_spread(holdings), *_totals(holdings)]


def _two_lines(holdings: Holdings) -> list[Row]:
    """The labeled samples of a client above the unlabeled ones."""
    labeled, unlabeled = _columns(holdings)
    rows = [Row()]
    for client in holdings.shown:
        if client is None:
            rows.append(_gap(labeled))
        else:
            rows.append(Row(f"{client} labeled", _words(labeled[client])))
            rows.append(Row("unlabeled", _words(unlabeled[client])))
    return [*rows, Row(), *_spread(holdings), *_totals(holdings)]


def _columns(holdings: Holdings) -> tuple[Counts, Counts]:
    """(clients, names + 1): labeled and unlabeled samples, with their sums in the last column."""
    width = len(holdings.names)
    labeled, unlabeled = (
        np.column_stack([part[:, :width], part.sum(axis=1)]) for part in (holdings.labeled, holdings.unlabeled)
    )
    return labeled, unlabeled


def _gap(counts: Counts) -> Row:
    return Row(GAP, [GAP] * counts.shape[1])


def _spread(holdings: Holdings) -> list[Row]:
    """Fewest, median and most over all clients, if some have no row."""
    labeled, unlabeled = _columns(holdings)
    return _extremes(labeled + unlabeled) if None in holdings.shown else []


def _extremes(counts: Counts) -> list[Row]:
    numbers = {"fewest": counts.min(axis=0), "median": np.median(counts, axis=0), "most": counts.max(axis=0)}
    return [Row(head, _words(values)) for head, values in numbers.items()]


def _totals(holdings: Holdings) -> list[Row]:
    labeled, unlabeled = (part.sum(axis=0) for part in _columns(holdings))
    if not holdings.mixed:
        return [Row("total", _words(labeled + unlabeled))]
    return [Row("labeled", _words(labeled)), Row("unlabeled", _words(unlabeled))]


def _summaries(holdings: Holdings) -> list[Row]:
    """Each client in four numbers, when a line has no room for the classes."""
    known = holdings.all[:, :-1]
    numbers = np.column_stack([holdings.labeled.sum(axis=1), holdings.unlabeled.sum(axis=1), (known > 0).sum(axis=1)])
    rows = [
        Row(GAP, [GAP] * (len(SUMMARY) - 1))
        if client is None
        else Row(str(client), [*_words(numbers[client]), _largest(known[client], holdings.classes)])
        for client in holdings.shown
    ]
    extremes = [Row(row.head, [*row.cells, ""]) for row in _extremes(numbers)]
    total = [*_words(numbers[:, :2].sum(axis=0)), str(known.any(axis=0).sum()), ""]
    return [Row(), *rows, Row(), *extremes, Row("total", total)]


def _largest(known: Counts, classes: Sequence[str]) -> str:
    """`trousers 31%`: the largest class of a client, and its share of the samples of known class."""
    if not known.any():
        return ""
    first = int(known.argmax())
    return f"{_start(visible(classes[first]), 20)} {known[first] / known.sum():.0%}"


def _meaning(holdings: Holdings, *, pairs: bool) -> str:
    if pairs:
        return "Labeled/unlabeled samples of each class; a single number is unlabeled."
    if holdings.mixed:
        return "Samples of each class."
    return f"Samples of each class, all {'labeled' if holdings.labeled.any() else 'unlabeled'}."


def _class_sizes(holdings: Holdings) -> str:
    """The samples per class, when the table has no room for them."""
    sizes = holdings.all[:, :-1].sum(axis=0)
    low, high = int(sizes.min()), int(sizes.max())
    number = f"{low:,}" if low == high else f"{low:,} to {high:,} (median {np.median(sizes):,.10g})"
    return f"The clients together have {number} samples of each class; the heat map shows all of them."


def _left_out(holdings: Holdings, *, together: bool) -> str:
    clients = len(holdings.labeled)
    if None not in holdings.shown:
        return ""
    return (
        f" Clients {FIRST} to {clients - LAST - 1} are left out; fewest, median and most are over all {clients:,} "
        f"clients{', labeled and unlabeled samples together' * together}."
    )


def _words(numbers: NDArray[np.generic]) -> list[str]:
    return [f"{number:.10g}" for number in numbers.tolist()]


def visible(name: str) -> str:
    """The name, quoted if it is blank or unprintable, such as the class of a space in text data."""
    return name if name.strip() and name.isprintable() else repr(name)


# --- layout -----------------------------------------------------------------------------------------------------------


def _fitted(heads: Sequence[str], rows: Sequence[Row], width: int) -> list[Text]:
    """The rows under their headings, or nothing if they are too wide; width 0 means no limit."""
    columns = [[row.cells[place] for row in rows if row.cells] for place in range(len(heads) - 1)]
    first = max(cell_len(text) for text in (heads[0], *(row.head for row in rows)))
    needed = [max(map(cell_len, column)) for column in columns]
    wanted = [max(need, cell_len(head)) for need, head in zip(needed, heads[1:], strict=True)]
    widths = [max(need, min(want, NARROWEST)) for need, want in zip(needed, wanted, strict=True)]
    widths[-1] = wanted[-1]
    spare = width - first - sum(widths) - len(widths)
    if not width:
        widths = [want + 1 for want in wanted]
    elif spare < 0:
        return []
    else:
        widths = _widened(widths, wanted, spare)
    return _lines([heads[0], *disambiguate(heads[1:-1], widths[:-1]), heads[-1]], rows, first, widths)


def _widened(widths: Sequence[int], wanted: Sequence[int], spare: int) -> list[int]:
    """Give spare room to the narrowest column whose name is cut, then to all."""
    wide = list(widths)
    while spare and (cut := [place for place, want in enumerate(wanted) if wide[place] < want]):
        wide[min(cut, key=wide.__getitem__)] += 1
        spare -= 1
    return [each + min(2, spare // len(wide)) for each in wide]


def _lines(heads: Sequence[str], rows: Sequence[Row], first: int, widths: Sequence[int]) -> list[Text]:
    rule = Text("─" * (first + sum(widths) + len(widths)), style="dim")

    def line(head: str, cells: Sequence[str], style: str = "") -> Text:
        text = Text(_right(head, first), style=style)
        for cell, width in zip(cells, widths, strict=True):
            text.append(_right(cell, width + 1), style="dim" if cell in ("0", GAP) else "")
        text.rstrip()
        return text

    return [line(heads[0], heads[1:], "bold"), *(line(row.head, row.cells) if row.cells else rule for row in rows)]


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def _start(name: str, width: int) -> str:
    return name if cell_len(name) <= width else set_cell_size(name, width - 1).rstrip() + "…"


def _end(name: str, width: int) -> str:
    """The end of a name, for names with the same beginning."""
    return name if cell_len(name) <= width else "…" + set_cell_size(name[::-1], width - 1).rstrip()[::-1]
