"""Signs that a run collapses, noticed while it happens: one line each, with the likely cause and a remedy.

Every rule is a function of the rounds so far and of a few facts about the run. A cause is named once per run.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tacit.engines import failures
from tacit.engines.events import Event, Noticed, RoundEnded
from tacit.engines.job import ClientFailure, Job
from tacit.engines.record import RoundRecord
from tacit.errors import TacitError
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory
from tacit.runs.registry import method_kinds

NOT_FINITE = {reason().code for reason in (failures.not_finite, failures.diverged, failures.broken_model)}
DIVERGED = "engine.diverged"

ONE_CLASS = 0.9  # share of the pseudo-labels that one class has to take
RARE, USUAL, JUMP = 0.5, 0.9, 0.4  # accepted share before and after a jump, and its height
SETTLED = 2  # rounds in which anything may happen
RECENT = 3  # rounds whose mean loss counts
RISE, MARGIN = 2.0, 0.2  # the loss on labels rises to more than RISE times its lowest value plus MARGIN


@dataclass(frozen=True)
class Facts:
    """What the rules know about a run."""

    method: str
    lr: float  # of the clients
    paper_lr: float | None = None  # of the method's paper, if it states one
    labeler: str = ""  # who labels, if the objective has that setting
    labels_at_server: bool = False
    majority: float = 0.0  # share of the most frequent class among the labels
    classes: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, config: Config, job: Job) -> "Facts":
        """The facts about a run."""
        shown, server = job.federation.pool.y, job.federation.server.labeled.y
        server = server[server >= 0]
        counts = (shown[shown >= 0].bincount() if not len(server) else server.bincount()).float()
        objective = getattr(job.method, "objective", None)
        return cls(
            method=config.method_name,
            lr=config.train.lr,
            paper_lr=getattr(method_kinds(config.method_name)[0].kind, "PAPER_LR", None),
            labeler=str(getattr(objective, "labeler", "")),
            labels_at_server=len(server) > 0,
            majority=float(counts.max() / counts.sum()) if len(counts) else 0.0,
            classes=job.federation.classes,
        )


Rule = Callable[[Sequence[RoundRecord], Facts], str]  # the rounds so far -> what to print, or nothing


def one_class(rounds: Sequence[RoundRecord], facts: Facts) -> str:
    """One class takes over the pseudo-labels of all clients."""
    now = rounds[-1].metrics
    top, share = now.get("pseudo_class"), _mean(now, "pseudo_class_share")
    if top is None or top["min"] != top["max"] or rounds[-1].clients < 2:
        return ""
    if share is None or share < max(ONE_CLASS, (1 + facts.majority) / 2):
        return ""
    name = facts.classes[int(top["min"])] if facts.classes else int(top["min"])
    what = f"class {name} takes {share:.0%} of the pseudo-labels at every client"
    return f"{what}: the model confirms itself; {_calm(facts)}"


def kept_jumps(rounds: Sequence[RoundRecord], facts: Facts) -> str:
    """Suddenly most pseudo-labels are accepted, although the labels are not learned better."""
    if len(rounds) <= SETTLED:
        return ""
    before, now = (_mean(record.metrics, "pseudo_kept") for record in rounds[-2:])
    if before is None or now is None or before > RARE or now < max(USUAL, before + JUMP):
        return ""
    losses = [_loss_on_labels(record) for record in rounds[-2:]]
    if losses[0] is not None and losses[1] is not None and losses[1] < losses[0]:
        return ""
    return (
        f"the share of accepted pseudo-labels jumps from {before:.0%} to {now:.0%}: the model is sure of what it does "
        f"not know; {_calm(facts)}"
    )


def labels_loss_rises(rounds: Sequence[RoundRecord], facts: Facts) -> str:
    """The loss on the given labels rises far above its lowest value."""
    losses = [loss for record in rounds if (loss := _loss_on_labels(record)) is not None]
    if len(losses) < SETTLED + RECENT:
        return ""
    lowest, recent = min(losses), sum(losses[-RECENT:]) / RECENT
    if not recent > RISE * lowest + MARGIN:
        return ""
    return (
        f"the loss on the labels has risen from {lowest:.2f} to {recent:.2f}: pseudo-labels or the rate work against "
        f"the labels; {_calm(facts)}"
    )


def model_not_finite(rounds: Sequence[RoundRecord], facts: Facts) -> str:
    """The common model has no finite loss any more."""
    last = rounds[-1]
    if last.accuracy is None or (last.loss is not None and math.isfinite(last.loss)):
        return ""
    return f"the common model is not finite any more: {high_rate(facts)}"


RULES: Mapping[str, Rule] = {
    "collapse.one-class": one_class,
    "collapse.kept-jumps": kept_jumps,
    "collapse.labels-loss-rises": labels_loss_rises,
    "collapse.model-not-finite": model_not_finite,
}


class Watch:
    """Follows the rounds of a run; a cause that an earlier round has shown is not named again."""

    def __init__(self, facts: Facts, past: Iterable[RoundRecord] = ()) -> None:
        """`past` holds the rounds before a resume."""
        self._facts, self._rounds = facts, list[RoundRecord]()
        self.found: dict[str, Noticed] = {}
        for record in past:
            self.follow(record)

    def follow(self, record: RoundRecord) -> list[Noticed]:
        """What this round shows for the first time."""
        self._rounds.append(record)
        texts = {code: rule(self._rounds, self._facts) for code, rule in RULES.items() if code not in self.found}
        new = [Noticed(record.round, code, f"round {record.round + 1}: {text}") for code, text in texts.items() if text]
        self.found |= {notice.code: notice for notice in new}
        return new


def noting(directory: RunDirectory, facts: Facts, done: int) -> Callable[[Event], list[Noticed]]:
    """Call what it returns with every event of a run that has done this many rounds; notices are also saved."""
    watch = Watch(facts, directory.rounds(done))

    def follow(event: Event) -> list[Noticed]:
        new = watch.follow(event.record) if isinstance(event, RoundEnded) else []
        if new:
            directory.write_notices({code: notice.text for code, notice in watch.found.items()})
        return new

    return follow


def diverged(round: int, failed: Mapping[int, ClientFailure], facts: Facts) -> TacitError | None:
    """The error of a round in which every client became non-finite; None if others failed too."""
    if not failed or not all(failure.code in NOT_FINITE for failure in failed.values()):
        return None
    remedy = f"start a new run with a lower rate, such as --lr {(facts.paper_lr or facts.lr / 10):.2g}"
    return TacitError(f"diverged in round {round + 1}: {high_rate(facts)}", remedy, code=DIVERGED)


def high_rate(facts: Facts) -> str:
    """The rate as the likely cause, next to the paper's if that is lower."""
    paper = f" (paper: {facts.paper_lr:g})" if facts.paper_lr is not None and facts.paper_lr < facts.lr else ""
    return f"rate {facts.lr:g} is high for {facts.method}{paper}"


def _calm(facts: Facts) -> str:
    """What usually helps against a model that confirms itself."""
    if facts.labeler == "local" and facts.labels_at_server:
        return "try --set objective.labeler=global"
    if facts.paper_lr is not None and facts.paper_lr < facts.lr:
        return f"{high_rate(facts)}, so try --lr {facts.paper_lr:g}"
    return f"try a lower rate, such as --lr {facts.lr / 3:.1g}, or a higher threshold"


def _loss_on_labels(record: RoundRecord) -> float | None:
    """The server's if it trains, or the mean over the clients; None if it is unknown or not finite."""
    loss = record.server.get("loss_supervised", _mean(record.metrics, "loss_supervised"))
    return loss if loss is not None and math.isfinite(loss) else None


def _mean(metrics: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    return metrics[name]["mean"] if name in metrics else None
