"""Tacit: federated semi-supervised learning.

Train one model over many data holders when few samples have labels and no data may move.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacit.api import Comparison, Result, Tuned
    from tacit.inference.model import Model

__version__ = "0.1.0"


def run(
    config: str | Path | None = None,
    *,
    out: str | Path | None = None,
    progress: bool | None = None,
    **options: Any,
) -> "Result":
    """Run one experiment and return its result.

    Args:
        config: a TOML file to start from; default: the defaults of all settings.
        out: a new folder for the run; default: a temporary one, which is removed with the result.
        progress: show a bar, or a line per round where there is no room for one; default: a bar in terminals and
            notebooks, nothing elsewhere.
        **options: the options of `tacit run` with underscores (`method="fedavg+fixmatch"`, `per_class=5`), or any
            setting by its dotted name: `**{"method.mu": 0.1}`. `method="auto"` decides for the
            data, as `tacit run` does without a method.
    """
    from tacit import api

    return api.run(_path(config), _path(out), progress, options)


def resume(
    folder: str | Path,
    rounds: int | None = None,
    *,
    start: int | None = None,
    without: "Sequence[int]" = (),
    progress: bool | None = None,
) -> "Result":
    """Continue a run from its last checkpoint and return its result.

    Args:
        folder: the folder of the run.
        rounds: extend the run, finished or not, to this number of rounds.
        start: first return to the end of this round, if its checkpoint is kept; 0 is the start of the run.
        without: numbers of clients to leave out from there on.
        progress: see `run`.
    """
    from tacit import api

    return api.resume(Path(folder), rounds, progress, start, without)


def compare(
    config: str | Path | None = None,
    *,
    methods: "Sequence[str]",
    seeds: "Sequence[int]" = (0,),
    out: str | Path | None = None,
    progress: bool | None = None,
    **options: Any,
) -> "Comparison":
    """Run several methods with several seeds on one config; finished runs in `out` are not repeated.

    Args:
        config: a TOML file to start from; default: the defaults of all settings.
        methods: names of methods, or the bounds labels-only, all-labels and all-labels-strong.
        seeds: every method runs once with each.
        out: the folder of the runs; default: a temporary one, which is removed with the comparison.
        progress: see `run`.
        **options: see `run`. A setting of a method or an objective goes to the methods that have it.
    """
    from tacit import api

    return api.compare(_path(config), methods, seeds, _path(out), progress, options)


def tune(
    config: str | Path,
    *,
    space: "Mapping[str, Any]",
    trials: int = 20,
    out: str | Path | None = None,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> "Tuned":
    """Search for better settings, chosen on validation samples; weak trials are stopped early.

    Args:
        config: a TOML file to start from.
        space: values to try by the name of a setting: a range `(0.003, 0.3)` or `"0.003..0.3"`, or a list of values.
        trials: how many settings to try, with those that `out` has already.
        out: the folder of the trials, in which a search is continued; default: `runs/tune-CONFIG`.
        seed: of the search.
        progress: see `run`.
        **options: see `run`.
    """
    from tacit import api

    place = Path(out) if out is not None else Path("runs") / f"tune-{Path(config).stem}"
    return api.tune(Path(config), space, trials, place, seed, progress, options)


def report(*folders: str | Path, out: str | Path = "report.html") -> Path:
    """Write one HTML page about the runs, comparisons or benchmarks in folders; the path of the page."""
    from tacit import api

    return api.report(*folders, out=out)


def load(path: str | Path, *, import_net: bool = False) -> "Model":
    """Open a trained model; needs neither its training data nor its checkpoint.

    Args:
        path: the folder of a run, or a model file that `tacit export --format safetensors` wrote.
        import_net: import your own network `module:name` from the current folder or the path. Without this, a model
            that has one is refused, since importing a module runs its code.
    """
    from tacit.runs.result import saved_model

    return saved_model.load(Path(path), import_net=import_net)


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


__all__ = ["__version__", "compare", "load", "report", "resume", "run", "tune"]


def __dir__() -> list[str]:
    """The names that users need, without those this module imports."""
    return __all__
