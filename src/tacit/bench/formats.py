"""The table of a benchmark for other programs: Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Callable

from tacit.bench.tables import COSTS, Line, Sheet
from tacit.report.units import Stat

CSV_HEADS = (
    "benchmark", "column", "row", "seeds", "last5", "last5_std", "averaged", "best", "best_std", "paper", "difference",
    "labels", "rounds", "steps", "bytes_up", "bytes_down", "seconds", "leads", "doubts",
)  # fmt: skip
# What LaTeX takes for something else, and what its oldest engine has no letter for.
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "–": "--", "×": r"$\times$",
    "★": r"$\star$", "\u00a0": "~", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "σ": r"$\sigma$", "τ": r"$\tau$", "ψ": r"$\psi$", "Π": r"$\Pi$", "≥": r"$\geq$", "≤": r"$\leq$",
    **{small: rf"\textsuperscript{{{n}}}" for n, small in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}  # fmt: skip


def to_markdown(sheet: Sheet) -> str:
    """A table per column of which something is done, with every spread, and the notes below."""
    parts = [f"**{_plain(sheet.title)}**"] + ([_plain(sheet.about)] if sheet.about else [])
    heads = ("", "seeds", *sheet.heads, *COSTS)
    for block in sheet.begun:
        lines = ["| " + " | ".join([_plain(block.title), *heads[1:]]) + " |", "|---|" + "--:|" * (len(heads) - 1)]
        for line in block.lines:
            cells = [_plain(line.name), line.seeds, *line.reached(), *line.costs()]
            lines.append("| " + " | ".join(f"**{cell}**" if line.leads else cell for cell in cells) + " |")
        parts.append("\n".join(lines))
    if sheet.waiting:
        parts.append(f"Not run yet: {'; '.join(map(_plain, sheet.waiting))}. `tacit bench run {sheet.call}` does.")
    return "\n\n".join([*parts, *(["  \n".join(_plain(note) for note in sheet.notes)] if sheet.begun else [])]) + "\n"


def _plain(text: str) -> str:
    return " ".join(text.strip().splitlines()).replace("|", r"\|").replace("<", "&lt;")


def to_csv(sheet: Sheet) -> str:
    """A line per cell; accuracies in percent, bytes and seconds as plain numbers, nothing where there is nothing."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_HEADS)
    for block in sheet.blocks:
        for line in block.lines:
            doubts = " ".join(map(str, line.doubts))
            table.writerow([sheet.name, block.title, line.title, line.seeds, *_numbers(line), doubts])
    return text.getvalue()


def _numbers(line: Line) -> list[str]:
    paper = "" if line.paper is None else f"{line.paper:.2f}"
    if line.ours is None:
        return ["", "", "", "", "", paper, "", line.labels, "", "", "", "", "", ""]
    ours = line.ours
    reached = [*_percents(ours.last5), str(ours.averaged[0]), *_percents(ours.best), paper]
    apart = "" if line.difference is None else f"{line.difference:.2f}"
    costs = [f"{stat.mean:.0f}" for stat in (ours.rounds, ours.steps, ours.bytes_up, ours.bytes_down)]
    return [*reached, apart, line.labels, *costs, f"{ours.seconds.mean:.1f}", "yes" if ours.leads else "no"]


def _percents(stat: Stat) -> list[str]:
    return [f"{100 * stat.mean:.2f}", "" if stat.std is None else f"{100 * stat.std:.2f}"]


def to_latex(sheet: Sheet) -> str:
    """A tabular in the style of booktabs with a part per column; the notes below it are comments to place by hand."""
    heads = ("", *sheet.heads, *COSTS[1:])
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    lines.append(" & ".join(map(_latex, heads)) + r" \\")
    for block in sheet.blocks:
        lines += [r"\midrule", rf"\multicolumn{{{len(heads)}}}{{l}}{{\emph{{{_latex(block.title)}}}}} \\"]
        for line in block.lines:
            cells = map(_latex, (line.name, *line.reached(), *line.costs()[1:]))
            lines.append(" & ".join(rf"\textbf{{{cell}}}" if line.leads else cell for cell in cells) + r" \\")
    notes = [f"% {note}" for note in (sheet.title, *sheet.notes)]
    return "\n".join([*notes, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


FORMATS: dict[str, Callable[[Sheet], str]] = {"markdown": to_markdown, "csv": to_csv, "latex": to_latex}
