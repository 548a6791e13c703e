"""The table of a benchmark as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Callable

from tacit.bench.tables import COSTS, Line, ResultTable
from tacit.formatting import Stat

CSV_HEADS = (
    "benchmark", "column", "row", "seeds", "last5", "last5_std", "averaged", "best", "best_std", "paper", "difference",
    "labels", "rounds", "steps", "bytes_up", "bytes_down", "seconds", "leads", "caveats", "below_labels_only",
)  # fmt: skip
# Characters with a meaning in LaTeX, and those that pdflatex cannot print.
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "×": r"$\times$",
    "★": r"$\star$", "\u00a0": "~", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "σ": r"$\sigma$", "τ": r"$\tau$", "ψ": r"$\psi$", "Π": r"$\Pi$", "≥": r"$\geq$", "≤": r"$\leq$",
    **{small: rf"\textsuperscript{{{n}}}" for n, small in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}  # fmt: skip


def to_markdown(table: ResultTable) -> str:
    """A table per column that has results, with every spread, and the notes below."""
    parts = [f"**{plain(table.title)}**"] + ([plain(table.about)] if table.about else [])
    heads = ("", "seeds", *table.heads, *_below_head(table), *COSTS)
    for block in table.started:
        lines = ["| " + " | ".join([plain(block.title), *heads[1:]]) + " |", "|---|" + "--:|" * (len(heads) - 1)]
        for line in block.lines:
            below = [line.below] if table.compares else []
            cells = [plain(line.name), line.seeds, *line.accuracies(), *below, *line.costs()]
            lines.append("| " + " | ".join(f"**{cell}**" if line.leads else cell for cell in cells) + " |")
        parts.append("\n".join(lines))
    if table.not_started:
        titles = "; ".join(map(plain, table.not_started))
        parts.append(f"Not run yet: {titles}. Run with `tacit bench run {table.argument}`.")
    notes = ["  \n".join(plain(note) for note in table.notes)] if table.started else []
    return "\n\n".join([*parts, *notes]) + "\n"


def plain(text: str) -> str:
    """Text on one line that means nothing else in a Markdown table."""
    return " ".join(text.strip().splitlines()).replace("|", r"\|").replace("<", "&lt;")


def to_csv(table: ResultTable) -> str:
    """A line per cell: accuracies in percent, bytes and seconds as plain numbers, empty where there is no result."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADS)
    for block in table.blocks:
        for line in block.lines:
            caveats = " ".join(map(str, line.caveats))
            below = "" if line.compared is None else str(line.compared[0])
            writer.writerow([table.name, block.title, line.title, line.seeds, *_numbers(line), caveats, below])
    return text.getvalue()


def _numbers(line: Line) -> list[str]:
    paper = "" if line.paper is None else f"{line.paper:.2f}"
    if line.ours is None:
        return ["", "", "", "", "", paper, "", line.labels, "", "", "", "", "", ""]
    ours = line.ours
    accuracies = [*_percents(ours.last5), str(ours.averaged[0]), *_percents(ours.best), paper]
    difference = "" if line.difference is None else f"{line.difference:.2f}"
    costs = [f"{stat.mean:.0f}" for stat in (ours.rounds, ours.steps, ours.bytes_up, ours.bytes_down)]
    return [*accuracies, difference, line.labels, *costs, f"{ours.seconds.mean:.1f}", "yes" if ours.leads else "no"]


def _percents(stat: Stat) -> list[str]:
    return [f"{100 * stat.mean:.2f}", "" if stat.std is None else f"{100 * stat.std:.2f}"]


def to_latex(table: ResultTable) -> str:
    """A booktabs tabular with a part per column; the notes are comments above it, to place by hand."""
    heads = ("", *table.heads, *_below_head(table), *COSTS[1:])
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    lines.append(" & ".join(map(_latex, heads)) + r" \\")
    for block in table.blocks:
        lines += [r"\midrule", rf"\multicolumn{{{len(heads)}}}{{l}}{{\emph{{{_latex(block.title)}}}}} \\"]
        for line in block.lines:
            below = [line.below] if table.compares else []
            cells = map(_latex, (line.name, *line.accuracies(), *below, *line.costs()[1:]))
            lines.append(" & ".join(rf"\textbf{{{cell}}}" if line.leads else cell for cell in cells) + r" \\")
    notes = [f"% {note}" for note in (table.title, *table.notes)]
    return "\n".join([*notes, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _below_head(table: ResultTable) -> list[str]:
    return ["below"] if table.compares else []


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


FORMATS: dict[str, Callable[[ResultTable], str]] = {"markdown": to_markdown, "csv": to_csv, "latex": to_latex}
