"""Draw the runs of benchmarks/ssfl_factors.toml: accuracy against steps of the server, a chart for each factor.

    tacit bench run ssfl-factors && python benchmarks/ssfl_factors.py [--runs runs/bench/ssfl-factors] [--out docs]

The first row is in every chart, as is the server alone, dotted.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tacit.report.curves import curves
from tacit.report.plots import COLORS, STYLE
from tacit.report.read import load

STEPS = 1600  # of the server in every row, whatever its rounds are
GREY = "#444444"  # of the server alone
CHARTS: dict[str, dict[str, str]] = {
    "how uneven the users are": {"base": "R = 0.4", "r-0": "R = 0", "r-1": "R = 1"},
    "steps between communications": {"base": "T = 4", "t-1": "T = 1", "t-16": "T = 16"},
    "users": {"base": "K = C_k = 10", "k-20": "K = C_k = 20", "c-2": "K = 10, C_k = 2"},
    "labels": {"base": "N_s = 1,000", "n-250": "N_s = 250", "n-4000": "N_s = 4,000"},
    "normalisation, groups": {"base": "GroupNorm, one group", "batchnorm": "BatchNorm", "grouping": "two groups"},
    "loss of the users": {"base": "consistency", "self-training": "self-training"},
}


def draw(runs: Path, chart: Axes, title: str, rows: dict[str, str]) -> None:
    """The rows of one factor."""
    shown = [*rows.items(), ("labels-only", "server alone, 1,000 labels")]
    found = curves(load(runs / "fashion" / name / "seed-0", label) for name, label in shown)
    for curve, ink in zip(found, (*COLORS[: len(rows)], GREY), strict=True):
        x = [STEPS * round / curve.x[-1] for round in curve.x]
        chart.plot(x, curve.mean, color=ink, linestyle=":" if ink == GREY else "-", label=curve.label, linewidth=1.2)
    chart.set(title=title, ylim=(0, 95))
    chart.grid(axis="y", alpha=0.2)
    chart.legend(loc="lower right", frameon=False, fontsize=8)


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
            lower.set_xlabel("steps of the server")
        figure.tight_layout()
        figure.savefig(arguments.out / "ssfl-factors.png", dpi=120)
    print(f"drawn: {arguments.out / 'ssfl-factors.png'}")
