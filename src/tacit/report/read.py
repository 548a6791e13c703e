"""A run directory as numbers. What is read here was written by another process, which may still be running."""

import json
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from tacit.errors import TacitError

# What the reports use of a record; a line without these is not one.
FIELDS = {"round", "seconds", "accuracy", "local_accuracy", "steps", "bytes_down", "bytes_up", "skipped"}

ALL_LABELS = "all labels"
COMMAND = "command.txt"  # in a folder of runs: the command that made them


@dataclass(frozen=True)
class Run:
    """One run: its config, its rounds so far, and what people call it.

    Accuracies are of runs that have an evaluated round, as `load` and `evaluated` give them.
    """

    folder: Path
    config: dict[str, Any]
    rounds: list[dict[str, Any]]
    label: str
    group: str = ""  # of the runs it is compared with, where there are several such groups

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
        """The settings of the data; empty where the config has none."""
        section = self.config.get("data")
        return section if isinstance(section, dict) else {}

    @property
    def labels(self) -> str:
        """How many labels there were, in words; empty where the config does not say."""
        return labels_in_words(self.data)

    @property
    def local(self) -> bool:
        """Whether there is no common model, so that accuracies are averages over the clients' own."""
        return all(record["accuracy"] is None for record in self.rounds)

    @property
    def accuracy_curve(self) -> list[tuple[int, float]]:
        """(rounds played, test accuracy) where evaluated; without a common model, the clients' average."""
        name = "local_accuracy" if self.local else "accuracy"
        return [(record["round"] + 1, float(record[name])) for record in self.rounds if record[name] is not None]

    @property
    def last5(self) -> float:
        """Mean of the last five evaluated accuracies, which one lucky round does not move much."""
        return fmean(accuracy for _, accuracy in self.accuracy_curve[-5:])

    @property
    def averaged(self) -> int:
        """How many evaluations `last5` is the mean of: fewer than five where there are no more."""
        return len(self.accuracy_curve[-5:])

    @property
    def best(self) -> float:
        """The highest accuracy; chosen on the test set, so kinder than `last5`."""
        return max(accuracy for _, accuracy in self.accuracy_curve)

    @property
    def bytes_up(self) -> int:
        """What the clients sent."""
        return sum(record["bytes_up"] for record in self.rounds)

    @property
    def bytes_down(self) -> int:
        """What the server sent."""
        return sum(record["bytes_down"] for record in self.rounds)

    @property
    def steps(self) -> int:
        """Steps of training, at all clients and at the server."""
        return sum(map(steps_of, self.rounds))

    def spent(self, cost: Callable[[dict[str, Any]], float]) -> dict[int, float]:
        """What all rounds until then have cost, by rounds played."""
        totals = accumulate(map(cost, self.rounds))
        return {record["round"] + 1: total for record, total in zip(self.rounds, totals, strict=True)}

    def metric(self, name: str) -> dict[int, tuple[float, float, float]]:
        """Mean, least and largest over the clients of a number they logged, by rounds played; where they did."""
        told = {record["round"] + 1: record.get("metrics", {}).get(name) for record in self.rounds}
        return {round: found for round, values in told.items() if (found := _three(values)) is not None}

    @property
    def seconds(self) -> float:
        """How long the rounds took."""
        return float(sum(record["seconds"] for record in self.rounds))

    @property
    def skipped(self) -> Counter[str]:
        """How often a client was left out of a round, by reason."""
        return Counter(str(reason) for record in self.rounds for reason in record["skipped"].values())

    @property
    def finished(self) -> bool:
        """Whether all rounds of the config were played."""
        return len(self.rounds) == int(self.config["rounds"])


def steps_of(record: Mapping[str, Any]) -> int:
    """Steps of training in a round, at all clients and at the server."""
    return int(record["steps"]) + int(record.get("server", {}).get("steps", 0))


def bytes_of(record: Mapping[str, Any]) -> int:
    """Bytes sent in a round, both ways."""
    return int(record["bytes_up"]) + int(record["bytes_down"])


def labels_in_words(data: Mapping[str, Any]) -> str:
    """How many labels these settings of the data give; empty where they do not say."""
    place = {"client": " at each client", "some": " at each labeled client"}.get(str(data.get("labels")), "")
    match data:
        case {"labels": "all"}:
            return ALL_LABELS
        case {"n_labels": int(number)}:
            return f"{number} label{'s' * (number != 1)}"
        case {"per_class": int(number)}:
            return f"{number} label{'s' * (number != 1)} per class{place}"
        case {"label_fraction": float(share)}:
            return f"{100 * share:.3g} % of the labels"
    return ""


def load(folder: Path, label: str | None = None, group: str = "") -> Run:
    """The run in a folder, under its method's name or a label of one's own, once a round of it is evaluated."""
    (run,) = evaluated([_begun(folder, label, group)])
    return run


def _begun(folder: Path, label: str | None = None, group: str = "") -> Run:
    """The same, however far it is."""
    if not folder.is_dir():
        raise TacitError(f"there is no folder {folder}: give the folder of a run, as printed by `tacit run`")
    config = _config(folder)
    rounds = _rounds(folder)
    name = label if label is not None else str(config["method"]["name"])
    return Run(folder, config, rounds, _printable(name), _printable(group))


def evaluated(runs: Sequence[Run]) -> list[Run]:
    """Those of at least one run that have an evaluated round: there is nothing to show of the others."""
    found = [run for run in runs if run.accuracy_curve]
    if not found:
        folder = runs[0].folder
        resume = shlex.join(["tacit", "resume", str(folder)])
        raise TacitError(f"{folder} has no evaluated round yet: wait for one, or go on with `{resume}`")
    return found


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """Runs that would count as one row of a table though they are of different settings, or of one seed, by folder."""
    rows: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        rows.setdefault((run.group, run.label), []).append(run)
    mixed = {row for row, members in rows.items() if len({_settings(run) for run in members}) > 1}
    mixed |= {row for row, members in rows.items() if len({run.seed for run in members}) < len(members)}
    return [
        replace(run, label=_printable(f"{run.label} ({run.folder.name})")) if (run.group, run.label) in mixed else run
        for run in runs
    ]


def _settings(run: Run) -> str:
    """All that its numbers depend on but the seed, to be compared."""
    told = {name: value for name, value in run.config.items() if name not in ("seed", "engine", "track")}
    return json.dumps(told, sort_keys=True, default=str)


def by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each label, in the order of their first appearance: one line of a table or a plot."""
    return _by(runs, lambda run: run.label)


def by_group(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each group, likewise."""
    return _by(runs, lambda run: run.group)


def _by(runs: Iterable[Run], name: Callable[[Run], str]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(name(run), []).append(run)
    return groups


def load_all(folder: Path) -> list[Run]:
    """Every run in a folder, under the names of the folders between: group, label, seed, as far as there are any.

    Some may have no evaluated round yet, while others are being played.
    """
    found = places(folder) if folder.is_dir() else [folder]
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


def places(folder: Path) -> list[Path]:
    """The runs in a folder: itself, those of a comparison, or those of a benchmark, which are three levels down."""
    if (folder / "config.toml").exists():
        return [folder]
    found = (path.parent for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/config.toml"))
    # A benchmark moves runs of another config or code aside, under a name with .old- in it.
    return sorted(place for place in found if ".old-" not in place.name and not place.name.startswith("."))


def _without_runs(folder: Path) -> TacitError:
    """The error for a folder with nothing to report about; whoever gives one of several benchmarks is told so."""
    below = sorted(folder.glob("*/*/*/*/config.toml"))
    if below:
        return TacitError(
            f"{folder} holds the runs of benchmarks: give the folder of one, such as {below[0].parents[3]}"
        )
    make = "`tacit run`, `tacit compare` or `tacit bench run`"
    return TacitError(f"{folder} holds no run: give a folder that has some, or make one first with {make}")


def noted_command(folder: Path) -> str:
    """The command that made the runs in a folder; empty where none is written down."""
    try:
        return (folder / COMMAND).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
        _ = config["method"]["name"], int(config["seed"]), int(config["rounds"])
    except FileNotFoundError:
        raise TacitError(f"{folder} holds no run: give the folder a run was started in") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TacitError(f"{folder}/config.toml is not the config of a run ({error}): start the run again") from error
    return config


def _rounds(folder: Path) -> list[dict[str, Any]]:
    """Every whole record; a last line without its end is still being written, and not yet one."""
    path = folder / "rounds.jsonl"
    try:
        *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
        return [_record(line) for line in lines]
    except (OSError, ValueError) as error:
        raise TacitError(f"{path} can not be read ({error}): start the run again elsewhere") from error


def _record(line: bytes) -> dict[str, Any]:
    record = json.loads(line)
    if not isinstance(record, dict) or not record.keys() >= FIELDS:
        raise ValueError(f"not the record of a round: {line[:40]!r}")
    return record


def _three(values: Any) -> tuple[float, float, float] | None:
    """Mean, least and largest; None where one is missing or was not a number."""
    if not isinstance(values, dict) or any(values.get(name) is None for name in ("mean", "min", "max")):
        return None
    return float(values["mean"]), float(values["min"]), float(values["max"])


def _printable(text: str) -> str:
    """Labels end up in terminals, where a control character could do anything."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
