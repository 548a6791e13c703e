"""Draw the runs of benchmarks/ssfl_factors.toml: accuracy against server steps, one chart per factor.

    tacit bench run ssfl-factors && python benchmarks/ssfl_factors.py [--runs runs/bench/ssfl-factors] [--out docs]

Every chart shows the first row and, dotted, the server alone with 1,000 labels.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tacit.report import curves
from tacit.report.history import load
from tacit.report.plots import COLORS, STYLE

STEPS = 1600  # of the server in every row, regardless of its rounds
GREY = "#444444"  # of the server alone
CHARTS: dict[str, dict[str, str]] = {
    "heterogeneity of the users: R": {"base": "0.4", "r-0": "0", "r-1": "1"},
    "steps between averages: T": {"base": "4", "t-1": "1", "t-16": "16"},
    "users in a round: $C_k$ of K": {"base": "10 of 10", "k-20": "20 of 20", "c-2": "2 of 10"},
    "labels: $N_s$": {"base": "1,000", "n-250": "250", "n-4000": "4,000"},
    "normalisation and groups": {"base": "GroupNorm", "batchnorm": "BatchNorm", "grouping": "two groups"},
    "loss of the users": {"base": "consistency", "self-training": "self-training"},
}


def draw(runs: Path, chart: Axes, title: str, rows: dict[str, str]) -> None:
    """Draw the rows of one factor."""
    shown = [*rows.items(), ("labels-only", "_")]
    found = curves.accuracy(load(runs / "fashion" / name / "seed-0", label) for name, label in shown)
    for curve, ink in zip(found, (*COLORS[: len(rows)], GREY), strict=True):
        x = [STEPS * round / curve.x[-1] for round in curve.x]
        chart.plot(x, curve.mean, color=ink, linestyle=":" if ink == GREY else "-", label=curve.label, linewidth=1.2)
    chart.set_title(title, pad=22)
    chart.set_ylim(0, 90)
    chart.grid(axis="y", alpha=0.2)
    compact = {"handlelength": 1.2, "handletextpad": 0.5, "columnspacing": 1.0}
    legend = chart.legend(loc="lower left", bbox_to_anchor=(-0.03, 0.98), ncols=3, frameon=False, fontsize=9, **compact)
    legend.set_in_layout(False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/bench/ssfl-factors"))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    with plt.rc_context(STYLE | {"axes.titlesize": 10}):
        figure, grid = plt.subplots(2, 3, figsize=(10, 6.2), sharex=True, sharey=True)
        for place, (factor, rows) in zip(grid.flat, CHARTS.items(), strict=True):
            draw(arguments.runs, place, factor, rows)
        for left in grid[:, 0]:
            left.set_ylabel("test accuracy (%)")
        for lower in grid[-1]:
            lower.set_xlabel("server steps")
        figure.tight_layout()
        figure.savefig(arguments.out / "ssfl-factors.png", dpi=120)
    print(f"drawn: {arguments.out / 'ssfl-factors.png'}")
