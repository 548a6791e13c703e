"""Predict all samples at some paths into a table on disk, a block at a time."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

from tacit.errors import TacitError
from tacit.inference.drift import warnings
from tacit.inference.model import Model
from tacit.inference.output import GrowingTable, rows_of
from tacit.inference.prediction import UNSURE, Columns
from tacit.inference.samples import Block, blocks
from tacit.inference.workers import predict_blocks
from tacit.process import cores

NAMED = 10  # unreadable samples that are remembered by name


@dataclass
class Summary:
    """What is in a finished table."""

    samples: int = 0
    answers: Counter[str] = field(default_factory=Counter)  # of each class, and "unsure"
    unreadable: int = 0
    problems: dict[str, str] = field(default_factory=dict)  # the first unreadable samples, and why
    drift: list[str] = field(default_factory=list)  # how the samples differ from those the model knows

    @property
    def unsure(self) -> int:
        """Answers below the threshold."""
        return self.answers[UNSURE]


def predict_paths(
    paths: Sequence[str],
    out: Path,
    model: Model,
    open_model: Callable[[], Model],
    columns: Columns,
    workers: int | None,
    follow: Callable[[int], None],
) -> Summary:
    """Predict the samples at these paths; `follow` learns how many are done. Interrupted, it continues next time.

    `open_model` opens the same model in a worker; there is one worker per core unless their number is given.
    """
    workers = cores() if workers is None else workers
    every = partial(blocks, paths, model.reader)
    with closing(GrowingTable(out, columns, _fingerprint(model, columns, paths))) as table:
        left: Iterator[Block] = every()
        if not table.skip_done(left):
            left = every()
        follow(table.progress.samples)
        try:
            with closing(predict_blocks(left, open_model, columns, workers)) as results:
                for block, predicted in results:
                    table.append(block, predicted)
                    follow(table.progress.samples)
        except BaseException:
            table.save()
            raise
        if not table.progress.samples:
            raise TacitError(f"{', '.join(paths)} has no samples", "check the path", code="predict.no-samples")
        table.finish()
        drift = list(warnings(model.description, table.progress.seen, columns.threshold))
    return _summary(out, drift)


def _fingerprint(model: Model, columns: Columns, paths: Sequence[str]) -> str:
    """Of all that determines the table but the samples: weights, description, columns, paths."""
    digest = sha256(json.dumps([model.description.to_plain(), asdict(columns), list(paths)]).encode())
    for name, value in sorted(model.weights.items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _summary(out: Path, drift: list[str]) -> Summary:
    summary = Summary(drift=drift)
    for row in rows_of(out):
        summary.samples += 1
        if row["problem"]:
            summary.unreadable += 1
            if len(summary.problems) < NAMED:
                summary.problems[row["path"]] = row["problem"]
        else:
            summary.answers[row["prediction"]] += 1
    return summary
