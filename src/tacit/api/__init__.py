"""The functions for scripts and notebooks, such as `tacit.run`; `results` is what they return.

`import tacit` loads this package with the first call.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.api.results import Comparison, Result, Tuned
from tacit.api.results import write_report as report
from tacit.report import history
from tacit.runs import config as configs
from tacit.runs import replay
from tacit.runs.compare import compare as run_all
from tacit.runs.experiment import Experiment
from tacit.runs.extension import extend
from tacit.runs.followers import progress
from tacit.runs.resolve import resolve
from tacit.runs.space import as_space
from tacit.runs.tune import Search

__all__ = ["Comparison", "Result", "Tuned", "compare", "report", "resume", "run", "tune"]


def run(config: Path | None, out: Path | None, show: bool | None, options: Mapping[str, Any]) -> Result:
    """See `tacit.run`."""
    base = configs.read(config) if config is not None else {}
    asked = resolve(options, base, default=configs.DEFAULT_METHOD)
    configs.refuse_sites(asked.config)
    with _place(out, "run") as folder:
        experiment = replace(Experiment.create(asked.config, folder, asked.loaded), persistent=out is not None)
        return _finished(experiment, show, temporary=out is None)


def resume(
    folder: Path, rounds: int | None, show: bool | None, start: int | None = None, without: Sequence[int] = ()
) -> Result:
    """See `tacit.resume`."""
    experiment = Experiment.reopen(folder) if rounds is None else extend(folder, rounds)[0]
    replay.prepare(experiment.directory, start, [str(client) for client in without])
    return _finished(experiment, show)


def compare(
    config: Path | None,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path | None,
    show: bool | None,
    options: Mapping[str, Any],
) -> Comparison:
    """See `tacit.compare`."""
    base = configs.read(config) if config is not None else {}
    mode, console = _mode(show)
    with _place(out, "compare") as folder:
        places = run_all(base, dict(options), methods, seeds, folder, mode, console)
        runs = tuple(history.load(place, method) for place, method in places.items())
        found = Comparison(folder, runs)
        if out is None:
            _remove_with(found, folder.parent)
        return found


def tune(
    config: Path,
    space: Mapping[str, Any],
    trials: int,
    out: Path,
    seed: int,
    show: bool | None,
    options: Mapping[str, Any],
) -> Tuned:
    """See `tacit.tune`."""
    search = Search(configs.read(config), dict(options), as_space(space), trials, out, seed)
    mode, console = _mode(show)
    for trial in search.run():
        if mode == "auto":
            accuracy = "failed" if trial.validation is None else f"validation {trial.validation:.1%}"
            progress.say(f"trial {trial.trial + 1}/{trials}  {accuracy}  {trial.values}", console)
    return Tuned(search)


def _finished(experiment: Experiment, show: bool | None, *, temporary: bool = False) -> Result:
    """Run the rounds that are left and wrap the result."""
    mode, console = _mode(show)
    progress.run(experiment, mode, console)
    found = experiment.result()
    result = Result(found.config, found.history, found.params, found.job, experiment.folder)
    if temporary:
        _remove_with(result, experiment.folder.parent)
    return result


@contextmanager
def _place(out: Path | None, name: str) -> Iterator[Path]:
    """The given folder, or one in a new temporary folder, which is removed at once if something fails."""
    if out is not None:
        yield out
        return
    scratch = Path(tempfile.mkdtemp(prefix="tacit-"))
    try:
        yield scratch / name
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _remove_with(owner: object, folder: Path) -> None:
    """Remove a folder when its owner is no longer used, or the program ends."""
    weakref.finalize(owner, _remove, folder, os.getpid())


def _remove(folder: Path, process: int) -> None:
    """Remove a folder in the process that made it; worker processes inherit the owner too."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _mode(show: bool | None) -> tuple[progress.Mode, Console]:
    """A bar in terminals and notebooks; elsewhere nothing, or lines if asked for. On stderr, since stdout is yours."""
    console = Console(stderr=True)
    wanted = (console.is_terminal or console.is_jupyter) if show is None else show
    return ("auto" if wanted else "quiet"), console
