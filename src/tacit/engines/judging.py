"""Who judges a model: the server's validation samples or, if it has none, the labels that clients hold out."""

from contextlib import closing
from dataclasses import replace

from tacit.engines.counts import CountDown, CountUp
from tacit.engines.job import ClientResult, ClientTask, Job, Transport
from tacit.engines.record import RoundRecord
from tacit.engines.uploads import decoded
from tacit.engines.wire import WireError
from tacit.learn import Score
from tacit.learn.central import score_on
from tacit.params import Params


def asks_clients(job: Job) -> bool:
    """Whether clients judge models, since the server has nothing to do so."""
    return job.hold_out and not len(job.federation.server.validation)


def can_judge(job: Job) -> bool:
    """Whether anybody judges models."""
    return job.hold_out or len(job.federation.server.validation) > 0


def counted(job: Job, client: int, task: CountDown) -> ClientResult:
    """At a client: how many of the labels it holds out a model gets right."""
    score = score_on(job.server(0, {}), task.model, job.federation.held_out_by(client))
    return ClientResult(CountUp(score.correct, score.count) if score.count else None, None, {})


class Judge:
    """Scores models in one round, and knows the bytes that this took."""

    def __init__(self, job: Job, transport: Transport | None, round: int) -> None:
        """Without a transport only the server can judge."""
        self._job, self._transport, self._round = job, transport, round
        self._traffic: dict[int, tuple[int, int]] = {}

    def __call__(self, model: Params) -> Score:
        """The model's score; no sample is in it if no client answers. Clients send counts, so theirs has no loss."""
        if not asks_clients(self._job):
            return score_on(self._job.server(0, {}), model, self._job.federation.server.validation)
        assert self._transport is not None
        down = CountDown(model)
        tasks = {client: ClientTask(down, None) for client in self._asked()}
        found: dict[int, Score] = {}
        with closing(self._transport.run(self._round, tasks)) as news:
            for item in news:
                if isinstance(item, tuple):
                    client, outcome = item
                    before = self._traffic.get(client, (0, 0))
                    self._traffic[client] = before[0] + outcome.bytes_down, before[1] + outcome.bytes_up
                    if isinstance(outcome, ClientResult):
                        found[client] = self._read(client, outcome)
        return sum((found[client] for client in sorted(found)), Score())

    def with_traffic(self, record: RoundRecord) -> RoundRecord:
        """The record with the bytes of judging in its own."""
        if not self._traffic:
            return record
        everyone = sorted({*record.traffic, *self._traffic})
        pairs = {k: (record.traffic.get(k, (0, 0)), self._traffic.get(k, (0, 0))) for k in everyone}
        traffic = {k: (work[0] + more[0], work[1] + more[1]) for k, (work, more) in pairs.items()}
        down, up = (sum(each[place] for each in traffic.values()) for place in (0, 1))
        return replace(record, traffic=traffic, bytes_down=down, bytes_up=up)

    def _asked(self) -> list[int]:
        """The clients that hold labels out; all of them where only they know."""
        held, left_out = self._job.federation.held_out, self._job.left_out
        known = held is not None and len(held.order) > 0
        everyone = range(self._job.federation.clients)
        chosen = [k for k in everyone if len(held.of(k))] if known and held is not None else list(everyone)
        return [client for client in chosen if self._round < left_out.get(client, self._job.rounds)]

    def _read(self, client: int, result: ClientResult) -> Score:
        """The counts of a client; none, if it does not send any or sends something else."""
        try:
            up = decoded(result.up)
        except WireError:
            return Score()
        most = len(self._job.federation.held_out_by(client)) or result.held or 0
        if not isinstance(up, CountUp) or not all(type(each) is int for each in (up.right, up.count)):
            return Score()
        return Score(up.right, 0.0, up.count) if 0 <= up.right <= up.count <= most else Score()
