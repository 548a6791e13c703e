"""Scores that a site measures for its own page, `memory/_scores.json`: they stay on its machine.

After every round, the model that the site has just trained is evaluated on the test samples of the site. Only the
owner can read the file. What left the machine is in the journal, and nothing of this file is.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tacit.errors import TacitError
from tacit.storage import SECRET, write_durably

FILE = "_scores.json"  # no run has this name, since ids of runs begin with a letter or a digit
MOST = 50  # runs that are remembered


@dataclass(frozen=True)
class LocalScore:
    """How good a site's own model was after its latest round of a run."""

    round: int  # from 1
    accuracy: float
    samples: int  # the site's test samples


def read(memory: Path) -> dict[str, LocalScore]:
    """The latest score of each run, the latest run last; nothing if none was measured."""
    try:
        known = json.loads((memory / FILE).read_bytes())
        return {str(run): _score(values) for run, values in known.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # the next round writes it again


def note(memory: Path, run: str, score: LocalScore) -> None:
    """Replace the score of a run. A round does not fail because its score cannot be written."""
    known = {name: each for name, each in read(memory).items() if name != run} | {run: score}
    latest = dict([*known.items()][-MOST:])
    with suppress(TacitError):
        text = json.dumps({name: asdict(each) for name, each in latest.items()})
        write_durably(memory / FILE, text.encode(), SECRET)


def _score(values: dict[str, float]) -> LocalScore:
    given = {item.name: values[item.name] for item in fields(LocalScore)}
    return LocalScore(int(given["round"]), float(given["accuracy"]), int(given["samples"]))
