"""Results as tables of pandas, which is imported only here."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tacit.errors import TacitError
from tacit.report.history import Run

if TYPE_CHECKING:
    import pandas

NESTED = ("traffic", "metrics", "server", "skipped", "scores")  # parts of a record that are no single number


def row_of_round(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as one row: nested numbers get names like `server/steps` and `clients/loss_supervised`."""
    row = {name: value for name, value in record.items() if name not in NESTED}
    row |= record.get("scores", {})
    row |= {f"server/{name}": value for name, value in record["server"].items()}
    return row | {f"clients/{name}": value["mean"] for name, value in record["metrics"].items()}


def row_of_run(run: Run) -> dict[str, Any]:
    """A finished run as one row: accuracies, scores of the last evaluation, costs."""
    costs = {"steps": run.steps, "bytes_up": run.bytes_up, "bytes_down": run.bytes_down, "seconds": run.seconds}
    row: dict[str, Any] = {"method": run.label, "seed": run.seed, "last5": run.last5, "best": run.best}
    return row | run.rounds[-1].scores | costs | {"rounds": len(run.rounds), "folder": str(run.folder)}


def frame_of(rows: Sequence[Mapping[str, Any]], index: str | None = None) -> "pandas.DataFrame":
    """The rows as a frame, indexed by one of their columns if asked."""
    try:
        import pandas
    except ImportError:
        raise TacitError(
            "frames need the package pandas", "install it with pip install 'tacit[notebook]'", code="api.no-pandas"
        ) from None
    found = pandas.DataFrame(list(rows))
    return found if index is None else found.set_index(index)
