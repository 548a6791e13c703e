"""Every chart of curves that runs can give: what it shows, in words and in numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.report import curves as drawn
from tacit.report.curves import AXES, ROUNDS, Axis, Curve
from tacit.report.read import Run, by_label

PSEUDO = {
    "pseudo_kept": ("Pseudo-labels kept", "Unlabeled samples whose pseudo-label is sure enough to learn from"),
    "pseudo_accuracy": ("Pseudo-labels right", "Of the pseudo-labels that are kept, those that are true"),
    "complementary_accuracy": ("Complementary labels right", "Of the classes ruled out, those that are indeed wrong"),
}


@dataclass(frozen=True)
class Chart:
    """Curves in percent against an axis."""

    name: str  # of its file
    title: str
    about: str  # what the numbers are
    high: str  # what is drawn upwards
    axis: Axis
    curves: list[Curve]
    labels: list[str]  # of all runs, whose order decides about colours

    def among(self, labels: Sequence[str]) -> "Chart":
        """The same chart beside others of some or all of these labels: each has one colour in all of them."""
        return replace(self, labels=list(labels))

    @property
    def across(self) -> str:
        """What is drawn to the right, with its unit."""
        unit, _ = self.axis.unit(self.curves)
        return f"{self.axis.words} ({unit})" if unit else self.axis.words

    @property
    def spoken(self) -> str:
        """The chart for who does not see it."""
        return f"Line chart of {self.high} against {self.axis.words}. " + " ".join(map(self._told, self.curves))

    def _told(self, curve: Curve) -> str:
        first, last = (f"{curve.mean[place]:.1f} % after {self.axis.said(curve.x[place])}" for place in (0, -1))
        return f"{curve.label}: {first}, {last}."


def accuracy(runs: Sequence[Run], axis: Axis = ROUNDS) -> Chart:
    """Accuracy on the test set, of the common model or of the clients' own where there is none."""
    own = ", ".join(by_label(run for run in runs if run.local))
    local = f" There is no common model in {own}: the average over the clients' own models is shown." if own else ""
    about = f"Accuracy on the test set.{_bands(runs)}{local}"
    title = f"Accuracy against {axis.words}"
    return Chart(
        f"accuracy-{axis.name}", title, about, "accuracy", axis, drawn.curves(runs, axis), list(by_label(runs))
    )


def accuracies(runs: Sequence[Run]) -> list[Chart]:
    """Against rounds, bytes, steps and time."""
    return [accuracy(runs, axis) for axis in AXES]


def pseudo_labels(runs: Sequence[Run]) -> list[Chart]:
    """How many pseudo-labels there are and how many are right, as far as the runs have logged it."""
    charts = []
    for name, (title, about) in PSEUDO.items():
        if found := drawn.logged(runs, name):
            told, file = f"{about}.{_bands(runs)}", name.replace("_", "-")
            charts.append(Chart(file, title, told, title.lower(), ROUNDS, found, list(by_label(runs))))
    return charts


def own_models(runs: Sequence[Run]) -> list[Chart]:
    """How far the clients' own models are apart, where they were evaluated (`log.local`)."""
    found = drawn.among_clients(runs, "local_accuracy")
    about = (
        "Each client's own model on the test set: lines are means, bands reach from the worst client to the best one."
    )
    chart = Chart(
        "clients", "Accuracy of the clients' own models", about, "accuracy", ROUNDS, found, list(by_label(runs))
    )
    return [chart] if found else []


def every(runs: Sequence[Run]) -> list[Chart]:
    """All charts there are about these runs."""
    return accuracies(runs) + pseudo_labels(runs) + own_models(runs)


def _bands(runs: Sequence[Run]) -> str:
    several = any(len(group) > 1 for group in by_label(runs).values())
    return " Lines are means over seeds, bands reach from the lowest to the highest seed." if several else ""
