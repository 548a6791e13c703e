"""Return a run to an earlier round and leave clients out from there on; from round 0, their contribution is gone.

Every random number depends on the seed, the round and the client alone, so the rounds that are played again have the
bits of a run in which those clients never answered.
"""

from collections.abc import Mapping, Sequence

from tacit.engines import checkpoint
from tacit.errors import TacitError
from tacit.runs.directory import RunDirectory


def prepare(
    directory: RunDirectory, start: int | None, without: Sequence[str], numbers: Mapping[str, int] | None = None
) -> None:
    """Return the run to the end of round `start` (default: where it is) and leave clients out of all later rounds.

    Clients are given by their number, or by their name where `numbers` has one for each. Nothing is deleted before
    everything was checked; the next `checkpoint.load` deletes what is newer.
    """
    if start is None and not without:
        return
    if directory.schema() == 1:
        raise TacitError(
            f"{directory.path} was begun by Tacit 0.1, which kept no earlier rounds",
            "start a new run",
            code="run.older-version",
        )
    if start is not None and directory.config().get("protect", {}).get("client_noise") is not None:
        raise TacitError(
            f"{directory.path} hides its clients by noise, and rounds that are played again have the same noise: the "
            "difference would show who is missing",
            "start a new run",
            code="protect.no-return",
        )
    if start is not None and directory.config().get("protect", {}).get("secure"):
        raise TacitError(
            f"{directory.path} has secure aggregation, and the difference of a round with and without a client would "
            "show its upload",
            "start a new run",
            code="protect.no-return",
        )
    clients = {_number(directory, given, numbers): given for given in without}
    with directory.lock():
        _refuse_unknown_round(directory, start)
        if start is not None:
            checkpoint.rewind(directory.checkpoint, start)
            directory.forget_result()
        if clients:
            directory.leave_out(clients, directory.finished_rounds() if start is None else start)


def _number(directory: RunDirectory, given: str, numbers: Mapping[str, int] | None) -> int:
    count = int(directory.config().get("data", {}).get("clients", 0))
    if numbers is not None and given in numbers:
        return numbers[given]
    if numbers is None and given.isdecimal() and len(given) < 10 and int(given) < count:
        return int(given)
    known = ", ".join(numbers) if numbers is not None else f"a number from 0 to {count - 1}"
    raise TacitError(
        f"{directory.path} has no {'site' if numbers is not None else 'client'} '{given}'",
        f"choose {'one of ' if numbers is not None else ''}{known}",
        code="run.no-such-client",
    )


def _refuse_unknown_round(directory: RunDirectory, start: int | None) -> None:
    known = checkpoint.rounds(directory.checkpoint)
    if start is not None and start not in known:
        raise TacitError(
            f"{directory.path} has no checkpoint after round {start}",
            f"choose one of {', '.join(map(str, known))}; log.keep_checkpoints says how many are kept",
            code="run.no-such-checkpoint",
        )
