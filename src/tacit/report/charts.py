"""Every chart of curves that runs provide: what it shows, in words and in numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.report import curves
from tacit.report.curves import AXES, ROUNDS, Axis, Curve
from tacit.report.history import Run, by_label

PSEUDO = {
    "pseudo_kept": ("Pseudo-labels accepted", "Share of unlabeled samples whose pseudo-label is accepted for training"),
    "pseudo_accuracy": ("Pseudo-label accuracy", "Share of the accepted pseudo-labels that are correct"),
    "pseudo_unknown": (
        "Pseudo-labels of unknown classes",
        "Share of the accepted pseudo-labels that belong to no class",
    ),
    "complementary_accuracy": ("Complementary accuracy", "Share of the excluded classes that are indeed wrong"),
}


@dataclass(frozen=True)
class Chart:
    """Curves in percent against an axis."""

    name: str  # of its file
    title: str
    about: str  # what the numbers mean
    quantity: str  # what the vertical axis shows
    axis: Axis
    curves: list[Curve]
    labels: list[str]  # of all runs; their order decides the colors
    unit: str = "%"

    def among(self, labels: Sequence[str]) -> "Chart":
        """The same chart with colors chosen among these labels, so that a label has one color in several charts."""
        return replace(self, labels=list(labels))

    @property
    def x_label(self) -> str:
        """What the horizontal axis shows, with its unit."""
        unit, _ = self.axis.unit(self.curves)
        return f"{self.axis.title} ({unit})" if unit else self.axis.title

    @property
    def alt_text(self) -> str:
        """The chart in words, for screen readers."""
        return f"Line chart of {self.quantity} against {self.axis.title}. " + " ".join(map(self._in_words, self.curves))

    def _in_words(self, curve: Curve) -> str:
        first, last = (
            f"{curve.mean[place]:.1f} {self.unit} after {self.axis.in_words(curve.x[place])}" for place in (0, -1)
        )
        return f"{curve.label}: {first}, {last}."


def accuracy(runs: Sequence[Run], axis: Axis = ROUNDS) -> Chart:
    """Test accuracy of the global model, or of the clients' own models if there is none."""
    local = ", ".join(by_label(run for run in runs if run.local))
    average = f" {local}: no global model, so the average over the clients' own models is shown." if local else ""
    return Chart(
        name=f"accuracy-{axis.name}",
        title=f"Accuracy against {axis.title}",
        about=f"Accuracy on the test set.{_bands(runs)}{average}",
        quantity="accuracy",
        axis=axis,
        curves=curves.accuracy(runs, axis),
        labels=list(by_label(runs)),
    )


def accuracies(runs: Sequence[Run]) -> list[Chart]:
    """Accuracy against rounds, communication, steps and time."""
    return [accuracy(runs, axis) for axis in AXES]


def pseudo_labels(runs: Sequence[Run]) -> list[Chart]:
    """How many pseudo-labels are accepted and how many are correct, if the runs logged it."""
    charts = []
    for name, (title, about) in PSEUDO.items():
        if found := curves.logged(runs, name):
            text, file = f"{about}.{_bands(runs)}", name.replace("_", "-")
            charts.append(Chart(file, title, text, title.lower(), ROUNDS, found, list(by_label(runs))))
    return charts


def scores(runs: Sequence[Run]) -> list[Chart]:
    """Each further score that `log.metrics` asked for."""
    names = list({name: None for run in runs for record in run.rounds for name in record.scores if name != "accuracy"})
    if not names:
        return []
    from tacit.metrics.scores import ABOUT  # needs numpy, which most charts do not

    charts = []
    for name in names:
        about = ABOUT[name]
        text = f"{about.title[0].upper()}{about.title[1:]}: {about.meaning}.{_bands(runs)}"
        unit = "%" if about.share else "× 100"
        found, labels = curves.scored(runs, name), list(by_label(runs))
        if found:
            charts.append(Chart(name.replace("_", "-"), about.title, text, about.title, ROUNDS, found, labels, unit))
    return charts


def client_models(runs: Sequence[Run]) -> list[Chart]:
    """How much the accuracies of the clients' own models differ, if they were evaluated (`log.local`)."""
    found = curves.among_clients(runs, "local_accuracy")
    about = "Each client's own model on the test set: lines are means, bands range from the worst to the best client."
    title = "Accuracy of the clients' own models"
    chart = Chart("clients", title, about, "accuracy", ROUNDS, found, list(by_label(runs)))
    return [chart] if found else []


def every(runs: Sequence[Run]) -> list[Chart]:
    """All charts about these runs."""
    return accuracies(runs) + scores(runs) + pseudo_labels(runs) + client_models(runs)


def _bands(runs: Sequence[Run]) -> str:
    several = any(len(group) > 1 for group in by_label(runs).values())
    return " Lines are means over seeds, bands range from the lowest to the highest seed." if several else ""
