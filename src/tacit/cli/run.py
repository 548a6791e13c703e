"""`tacit run` and `tacit resume`: from options to a finished run, and what is printed on the way."""

import json
import math
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.cli import exit
from tacit.errors import TacitError
from tacit.formatting import COLUMNS
from tacit.runs.assignments import assignments
from tacit.runs.directory.folders import fresh
from tacit.runs.followers.progress import say, say_wrapped

if TYPE_CHECKING:
    from tacit.runs.experiment import Experiment
    from tacit.runs.followers.progress import Mode
    from tacit.runs.resolve import Resolved


def place(out: Path | None, name: str) -> AbstractContextManager[Path]:
    """The given folder, or a new one with this name."""
    return nullcontext(out) if out else fresh(name)


def settings(
    config: Path | None,
    given: dict[str, Any],
    set: list[str] | None,
    default: str = "auto",
    tell: Callable[[str], None] | None = None,
) -> "Resolved":
    """The config from a file, options and --set; each of them overrides those before it."""
    from tacit.runs import config as configs
    from tacit.runs.resolve import resolve

    base = configs.read(config) if config else {}
    found = resolve(given | assignments(set), base, default, tell)
    configs.refuse_sites(found.config)
    return found


def mode(quiet: bool, as_json: bool) -> "Mode":
    """What to print while rounds run; refuses two ways at once."""
    if quiet and as_json:
        raise TacitError(
            "--json prints every round and --quiet prints none", "leave out one of them", code="cli.json-and-quiet"
        )
    return "json" if as_json else "quiet" if quiet else "auto"


def run(asked: "Resolved", out: Path | None, mode: "Mode", *, explain: bool) -> None:
    """Start a run and run it to its end, or only print what was decided for it."""
    from tacit.runs.experiment import Experiment

    for line in asked.lines if explain or mode == "auto" else ():
        say_wrapped(line)
    if explain:
        return
    with place(out, f"{asked.name}-{Path(asked.config.data.name).stem}") as folder:
        experiment = Experiment.create(asked.config, folder, asked.loaded)
    if mode == "auto":
        _describe_data(experiment)
    _run_to_end(experiment, mode)


def resume(folder: Path, rounds: int | None, start: int | None, without: Sequence[str], mode: "Mode") -> None:
    """Continue a run, to a number of rounds if one is given, after a return to round `start` without some clients."""
    from tacit.runs import replay
    from tacit.runs.experiment import Experiment
    from tacit.runs.extension import extend

    experiment, lines = (Experiment.reopen(folder), []) if rounds is None else extend(folder, rounds)
    replay.prepare(experiment.directory, start, without)
    for line in lines if mode == "auto" else ():
        say(line)
    _run_to_end(experiment, mode)


def _describe_data(experiment: "Experiment") -> None:
    """Print what was done to the samples when they were read, and whether test samples are training samples too."""
    from tacit.data.duplicates import duplicates_sentence, in_federation

    federation = experiment.job.federation
    for sentence in filter(None, (federation.note, duplicates_sentence(*in_federation(federation)))):
        say_wrapped(sentence)


def _run_to_end(experiment: "Experiment", mode: "Mode") -> None:
    """Run an experiment to its end and print its result; on Ctrl-C, print how to continue."""
    from tacit.runs.followers import progress

    def how_far() -> str:
        return f" after round {experiment.finished_rounds()} of {experiment.job.rounds}"

    console, folder = Console(), experiment.folder
    with exit.interruptible(experiment.directory.resume_command, how_far):
        progress.run(experiment, mode, console)
    accuracy = experiment.result().accuracy
    last = experiment.directory.rounds()[-1]
    if mode == "json":
        print(json.dumps({"accuracy": accuracy if math.isfinite(accuracy) else None, "folder": str(folder)}))
    else:
        if line := progress.choice_line(last):
            say_wrapped(line, console)
        say(f"{progress.accuracy_text(last, accuracy)}  saved in {folder}", console)
        if mode == "auto":
            say(_next_commands(experiment), console)


def _next_commands(experiment: "Experiment") -> str:
    """What to do with a finished run, a line per command if one is too short for all; each can be copied whole."""
    run = shlex.quote(str(experiment.folder))
    model = [f"tacit predict {run} FOLDER", f"tacit evaluate {run}"] if experiment.directory.model_file.exists() else []
    commands = [*model, f"tacit report {run}"]
    line = f"next: {', '.join(commands)}"
    return line if len(line) <= COLUMNS else "next: " + ",\n      ".join(commands)
