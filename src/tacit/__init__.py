"""Tacit: federated semi-supervised learning.

One model trained over many data holders when most of the data has no label and none of it may move.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.experiment import Result

__version__ = "0.1.0"


def run(config: str | Path | None = None, *, out: str | Path | None = None, **options: Any) -> "Result":
    """Run one experiment and return its result.

    Args:
        config: a TOML file to start from; without one, the defaults.
        out: a new folder for the run directory; without one, nothing is left on disk.
        **options: the options of `tacit run` with underscores (`method="fedavg+fixmatch"`, `per_class=5`), or a
            config's setting by its dotted name: `**{"method.mu": 0.1}`.
    """
    import tempfile  # here, since it is slow to import and the command line does without
    from dataclasses import replace

    from tacit import config as configs
    from tacit.experiment import Experiment

    base = configs.read(Path(config)) if config is not None else {}
    settings = configs.from_options(options, base)
    configs.refuse_sites(settings)
    with tempfile.TemporaryDirectory(prefix="tacit-") as scratch:
        experiment = Experiment.create(settings, Path(out) if out is not None else Path(scratch) / "run")
        experiment = replace(experiment, kept=out is not None)
        for _ in experiment.rounds():
            pass
        return experiment.result()


def resume(folder: str | Path) -> "Result":
    """Go on with a run that was interrupted, from its last checkpoint, and return its result."""
    from tacit.experiment import Experiment

    experiment = Experiment.reopen(Path(folder))
    for _ in experiment.rounds():
        pass
    return experiment.result()


__all__ = ["__version__", "resume", "run"]
