"""The config and rounds of a run, read from its folder while it may still be running, and the numbers in reports."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.runs.directory import RunDirectory
from tacit.runs.directory.folders import find_runs

ALL_LABELS = "all labels"


@dataclass(frozen=True)
class Run:
    """One run: its config, its rounds so far, and its label.

    Accuracies require an evaluated round, which runs from `load` and `evaluated` have.
    """

    directory: RunDirectory
    config: dict[str, Any]
    rounds: list[RoundRecord]
    label: str
    group: str = ""  # name of the runs it is compared with, if there are several groups

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.directory.path

    @property
    def method(self) -> str:
        """The method's full name, such as `fedavg+fixmatch`."""
        return str(self.config["method"]["name"])

    @property
    def seed(self) -> int:
        """The seed of all its randomness."""
        return int(self.config["seed"])

    @property
    def data(self) -> dict[str, Any]:
        """The data settings; empty if the config has none."""
        section = self.config.get("data")
        return section if isinstance(section, dict) else {}

    @property
    def labels(self) -> str:
        """The number of labels in words; empty if the config does not state it.

        A share of the labels says little without their number, so it is counted where the run wrote its counts.
        """
        words = labels_in_words(self.data)
        if "label_fraction" not in self.data or words == ALL_LABELS:
            return words
        counted = self._counted_labels()
        return words if counted is None else _labels(counted)

    def _counted_labels(self) -> int | None:
        """The labels at the server and the clients; None if there are no counts, as with real sites."""
        try:
            counts = self.directory.split()["counts"]
            return sum(map(int, counts["server"])) + sum(int(number) for row in counts["labeled"] for number in row)
        except (TacitError, KeyError, TypeError, ValueError):
            return None

    @property
    def local(self) -> bool:
        """Whether there is no global model, so that accuracies are averages over the clients' own models."""
        return all(record.accuracy is None for record in self.rounds)

    @property
    def accuracy_curve(self) -> list[tuple[int, float]]:
        """(number of rounds, test accuracy) where evaluated; without a global model, the clients' average."""
        local = self.local
        known = ((record.round + 1, record.local_accuracy if local else record.accuracy) for record in self.rounds)
        return [(round, accuracy) for round, accuracy in known if accuracy is not None]

    def score_curve(self, name: str) -> dict[int, float]:
        """A score that `log.metrics` asked for, by number of rounds, where it was evaluated."""
        return {record.round + 1: record.scores[name] for record in self.rounds if name in record.scores}

    @property
    def last5(self) -> float:
        """Mean of the last five evaluated accuracies, which a single lucky round barely changes.

        If the run chose the model it saved on validation samples, the accuracy of that one.
        """
        if self.chosen is not None:
            return self.chosen
        return fmean(accuracy for _, accuracy in self.accuracy_curve[-5:])

    @property
    def saved(self) -> float:
        """The accuracy of the model that is saved; of a run that is not finished, `last5`."""
        return self.accuracy_curve[-1][1] if self.finished and self.chosen is None else self.last5

    @property
    def averaged(self) -> int:
        """How many evaluations `last5` is the mean of: at most five."""
        return 1 if self.chosen is not None else len(self.accuracy_curve[-5:])

    @property
    def selected(self) -> dict[str, Any] | None:
        """Which model is saved and why, if it was chosen on validation samples."""
        return self.rounds[-1].selected if self.rounds else None

    @property
    def chosen(self) -> float | None:
        """The accuracy of the model that is saved, if it was chosen on validation samples."""
        found = self.selected["accuracy"] if self.selected else None
        return None if found is None else float(found)

    @property
    def best(self) -> float:
        """The highest accuracy; chosen on the test set, so more optimistic than `last5`."""
        return max(accuracy for _, accuracy in self.accuracy_curve)

    @property
    def bytes_up(self) -> int:
        """Bytes the clients sent."""
        return sum(record.bytes_up for record in self.rounds)

    @property
    def bytes_down(self) -> int:
        """Bytes the server sent."""
        return sum(record.bytes_down for record in self.rounds)

    @property
    def steps(self) -> int:
        """Training steps, at all clients and at the server."""
        return sum(record.all_steps for record in self.rounds)

    def spent(self, cost: Callable[[RoundRecord], float]) -> dict[int, float]:
        """The accumulated cost, by number of rounds."""
        totals = accumulate(map(cost, self.rounds))
        return {record.round + 1: total for record, total in zip(self.rounds, totals, strict=True)}

    def metric(self, name: str) -> dict[int, tuple[float, float, float]]:
        """Mean, minimum and maximum over the clients of a number they logged, by number of rounds, where logged."""
        logged = {record.round + 1: record.metrics.get(name) for record in self.rounds}
        return {round: found for round, values in logged.items() if (found := _three(values)) is not None}

    @property
    def seconds(self) -> float:
        """The time of all rounds."""
        return float(sum(record.seconds for record in self.rounds))

    @property
    def skipped(self) -> Counter[str]:
        """How often a client was left out of a round, by reason."""
        return Counter(str(reason) for record in self.rounds for reason in record.skipped.values())

    @property
    def ended(self) -> str:
        """Why it ended early, in words; empty if it did not, or if it can go on."""
        reason = self.directory.stop_reason()
        return reason.problem if reason is not None and not reason.resumable else ""

    @property
    def notices(self) -> list[str]:
        """Signs of collapse that were noticed while it ran, and why it ended early."""
        return [*self.directory.notices().values(), *filter(None, [self.ended])]

    @property
    def privacy(self) -> list[str]:
        """(ε, δ) after the last round, in words, for everything that the run hides."""
        known = (self.rounds[-1].privacy or {}) if self.rounds else {}
        numbers = {what: found for what, found in known.items() if isinstance(found, dict)}
        withheld = f"; not recorded: {known['withheld']}" if known.get("withheld") else ""
        return [
            f"(ε, δ) = ({'∞' if found.get('epsilon') is None else format(found['epsilon'], '.2f')}, "
            f"{found.get('delta') or 0:.1e}) for every {what} after {len(self.rounds)} rounds{withheld}"
            for what, found in numbers.items()
        ]

    @property
    def finished(self) -> bool:
        """Whether all rounds of the config are done."""
        return len(self.rounds) == int(self.config["rounds"]) or bool(self.rounds and self.rounds[-1].stopped)


def labels_in_words(data: Mapping[str, Any]) -> str:
    """The number of labels in these data settings, in words; empty if they do not state it."""
    place = {"client": " at each client", "some": " at each labeled client"}.get(str(data.get("labels")), "")
    match data:
        case {"labels": "all"}:
            return ALL_LABELS
        case {"n_labels": int(number)}:
            return _labels(number)
        case {"per_class": int(number)}:
            return f"{_labels(number)} per class{place}"
        case {"label_fraction": float(share)}:
            return f"{100 * share:.3g} % of the labels"
    return ""


def _labels(number: int) -> str:
    return f"{number} label{'s' * (number != 1)}"


def load(folder: Path, label: str | None = None, group: str = "") -> Run:
    """The run in a folder, named after its method unless a label is given; it needs an evaluated round."""
    (run,) = evaluated([_begun(folder, label, group)])
    return run


def load_compared(places: Mapping[Path, str]) -> tuple[list[Run], list[Run]]:
    """The runs in these folders, each with its label: those that can be compared, and those that ended early."""
    runs = [_begun(place, label) for place, label in places.items()]
    left = [run for run in runs if not run.ended]
    return evaluated(left) if left else [], [run for run in runs if run.ended]


def _begun(folder: Path, label: str | None = None, group: str = "") -> Run:
    """The run in a folder, with or without an evaluated round."""
    directory = RunDirectory(folder)
    config = directory.config()
    name = label if label is not None else str(config["method"]["name"])
    return Run(directory, config, directory.rounds(), printable(name), printable(group))


def evaluated(runs: Sequence[Run]) -> list[Run]:
    """The runs with an evaluated round; refuses if there are none."""
    found = [run for run in runs if run.accuracy_curve]
    if not found:
        directory = runs[0].directory
        raise TacitError(
            f"{directory.path} has no evaluated round yet",
            f"wait for one, or continue the run with `{directory.resume_command}`",
            code="report.no-round",
        )
    return found


def disambiguate(runs: Sequence[Run]) -> list[Run]:
    """The runs, with the folder added to labels shared by runs of different settings or of the same seed."""
    rows: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        rows.setdefault((run.group, run.label), []).append(run)
    mixed = set()
    for row, members in rows.items():
        settings = {run.directory.fingerprints().settings for run in members}
        if len(settings) > 1 or len({run.seed for run in members}) < len(members):
            mixed.add(row)
    return [
        replace(run, label=printable(f"{run.label} ({run.folder.name})")) if (run.group, run.label) in mixed else run
        for run in runs
    ]


def by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each label, in order of first appearance: one row of a table, one line of a plot."""
    return _by(runs, lambda run: run.label)


def by_group(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each group, in order of first appearance."""
    return _by(runs, lambda run: run.group)


def _by(runs: Iterable[Run], name: Callable[[Run], str]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(name(run), []).append(run)
    return groups


def load_all(folder: Path) -> list[Run]:
    """Every run in a folder, named by the folders in between: group, label and seed, if there are any.

    Some may have no evaluated round yet.
    """
    found = find_runs(folder) if folder.is_dir() else [folder]
    if not found:
        raise _without_runs(folder)
    runs = []
    for place in found:
        match place.relative_to(folder).parts:
            case (label,) | (label, _):
                runs.append(_begun(place, label))
            case (group, label, _):
                runs.append(_begun(place, label, group))
            case _:
                runs.append(_begun(place))
    return runs


def _without_runs(folder: Path) -> TacitError:
    """The error for a folder without runs, with a hint if it holds several benchmarks."""
    benchmarks = [below for below in sorted(folder.iterdir()) if below.is_dir() and find_runs(below)]
    if benchmarks:
        return TacitError(
            f"{folder} holds the runs of several benchmarks",
            f"give the folder of one, such as {benchmarks[0]}",
            code="report.several-benchmarks",
        )
    start = "`tacit run`, `tacit compare` or `tacit bench run`"
    return TacitError(f"{folder} holds no run", f"give a folder with runs, or start one with {start}", code="run.none")


def _three(values: Any) -> tuple[float, float, float] | None:
    """Mean, minimum and maximum; None if one is missing or is not a number."""
    if not isinstance(values, dict) or any(values.get(name) is None for name in ("mean", "min", "max")):
        return None
    return float(values["mean"]), float(values["min"]), float(values["max"])
