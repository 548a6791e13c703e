"""Draw the runs of benchmarks/families.toml: accuracy against rounds, communication and steps, one picture per column.

    tacit bench run families && python benchmarks/families.py [--runs runs/bench/families] [--out docs]

Each picture shows one row of every family and the two bounds.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from tacit.bench import spec
from tacit.report import curves
from tacit.report.curves import BYTES, ROUNDS, STEPS
from tacit.report.history import load
from tacit.report.plots import COLORS, STYLE

SHOWN = {
    "client": ("fedavg", "fedmix", "fedsiam-mt", "fedmatch", "fedavg-fixmatch", "scaffold-fixmatch", "all-labels"),
    "server": ("server-only", "fedavg-fixmatch", "fedsiam-d", "fedmatch", "fedrgd", "semifl", "all-labels"),
}
INK = "#444444"  # of the upper bound


def draw(runs: Path, column: str, out: Path) -> None:
    """Draw three charts side by side, with one legend for all."""
    titles = {name: row.title for name, row in spec.find("families").rows.items()} | {"all-labels": "All labels"}
    found = [load(runs / column / name / "seed-0", titles[name]) for name in SHOWN[column]]
    figure, charts = plt.subplots(1, 3, figsize=(9.5, 3.6), sharey=True)
    for chart, axis in zip(charts, (ROUNDS, BYTES, STEPS), strict=True):
        lines = curves.accuracy(found, axis)
        unit, size = axis.unit(lines)
        for curve, ink in zip(lines, (*COLORS[: len(lines) - 1], INK), strict=True):
            dash = ":" if ink == INK else "-"
            chart.plot([x / size for x in curve.x], curve.mean, color=ink, linestyle=dash, label=curve.label)
        chart.set(xlabel=f"{axis.title} ({unit})" if unit else axis.title, ylim=(0, 85))
        chart.grid(axis="y", alpha=0.2)
    charts[0].set_ylabel("test accuracy (%)")
    handles, labels = charts[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.86))
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/bench/families"))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    with plt.rc_context(STYLE):
        for name in SHOWN:
            draw(arguments.runs, name, arguments.out / f"families-{name}.png")
            print(f"drawn: {arguments.out / f'families-{name}.png'}")
