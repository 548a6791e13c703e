"""Worker processes on one machine: one per core, one torch thread each, the same bits for any number of them.

Workers are forked where that is safe, so they inherit method, network and data without a copy; elsewhere they are
spawned, and the data moves to shared memory first. The main process and its workers exchange frames of bytes over
pipes. A worker has one request at a time. It reports once that it is set up, and its first deadline starts then.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Literal

import torch

from tacit.engines import failures
from tacit.engines.client import part_count, run_client, score_part
from tacit.engines.events import ClientStarted, Waiting
from tacit.engines.job import ClientFailure, ClientNews, ClientOutcome, ClientTask, Job
from tacit.engines.reply import ReplyHeader
from tacit.engines.rounds import MethodFailedError
from tacit.engines.wire import Encoded
from tacit.errors import TacitError
from tacit.learn import Score
from tacit.params import Params
from tacit.process import make_deterministic, tune_malloc

ATTEMPTS = 2  # a request whose worker dies goes to another worker once
GRACE = 5.0  # seconds that all workers together have to finish before they are killed
QUIET = 1.0  # seconds without news after which the caller learns that there is none

Frames = list[bytes]  # of an answer: a reply's header, then what the request asks for
Answer = Frames | ClientFailure
Progress = int | tuple[int, Answer] | None  # a request that a worker began, or its answer; None: nothing new
Start = Literal["fork", "spawn"]


@dataclass(frozen=True)
class Request:
    """One piece of work for a worker: what to do, and the messages that belong to it."""

    values: dict[str, Any]
    attached: tuple[bytes, ...]
    deadline: float | None = None


class WorkerTransport:
    """A pool of worker processes."""

    def __init__(
        self,
        job: Job,
        workers: int,
        start: Start | None = None,
        private: Sequence[IO[bytes]] = (),
        devices: Sequence[torch.device] = (),
        threads: int = 1,
    ) -> None:
        """Start the workers, by fork where that is safe unless `start` says otherwise; `close` ends them.

        `private` lists open files that forked workers must close, such as a lock, so that they end with this process.
        `devices` are dealt to the workers in turn; without any, all compute on that of the job. Each worker has this
        many `threads`.
        """
        # A fork of a process that has computed on several threads may hang in its first parallel loop.
        safe = sys.platform == "linux" and job.device.type == "cpu" and threads == 1
        start = start or ("fork" if safe else "spawn")
        if start == "spawn":
            job.federation.share_memory()
        self._job, self._private, self._threads = job, private, threads
        self._start: Any = multiprocessing.get_context(start)  # fork and spawn share no public type
        self._pool: list[_Worker] = []
        dealt = cycle(devices or [job.device])
        for _ in range(workers):
            self._pool.append(self._new_worker(next(dealt)))

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        """Let the workers do the tasks; the largest clients go first, so that no worker waits long for the last one."""
        job, encoded = self._job, {}
        for task in tasks.values():
            if id(task.down) not in encoded:
                encoded[id(task.down)] = job.codec.encode(task.down)
        starts = job.federation.starts
        order = sorted(tasks, key=lambda client: int(starts[client] - starts[client + 1]))
        requests = {}
        for client in order:
            task = tasks[client]
            values = {"round": round, "client": client, "evaluate": task.evaluate}
            attached = (encoded[id(task.down)], *([] if task.memory is None else [task.memory]))
            requests[client] = Request(values, attached, job.deadline)
        with closing(self._work(requests)) as work:
            for item in work:
                if item is None:
                    yield Waiting(round)
                elif isinstance(item, int):
                    yield ClientStarted(round, item)
                else:
                    client, answer = item
                    yield client, self._outcome(answer, len(requests[client].attached[0]))

    def evaluate(self, model: Params, *, outputs: bool = False) -> Score:
        """The model's score on the whole test set; the workers share its parts, whose scores are added in order."""
        count, encoded = part_count(self._job), self._job.codec.encode(model)
        workers = len(self._pool)
        parts = {worker: list(range(worker, count, workers)) for worker in range(min(workers, count))}
        scores: dict[int, Score] = {}
        requests = {worker: Request({"parts": some, "outputs": outputs}, (encoded,)) for worker, some in parts.items()}
        answers = dict(item for item in self._work(requests) if isinstance(item, tuple))
        for answer in answers.values():
            if isinstance(answer, ClientFailure):
                raise TacitError(f"evaluation failed: {answer.reason}", code="engine.evaluation-failed", resumable=True)
            if failure := ReplyHeader.from_json(answer[0]).failure:
                raise MethodFailedError(
                    f"evaluation of {type(self._job.method).__name__} {failure.reason}"
                ) from RuntimeError(failure.detail)
            scores |= _read_scores(answer[1:])
        return sum((scores[part] for part in range(count)), Score())

    def close(self) -> None:
        """End all workers."""
        for worker in self._pool:
            worker.connection.close()
        until = time.monotonic() + GRACE
        for worker in self._pool:
            worker.process.join(timeout=max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()
        self._pool.clear()

    def _outcome(self, answer: Answer, bytes_down: int) -> ClientOutcome:
        if isinstance(answer, ClientFailure):
            return answer.with_bytes(bytes_down)
        header, attached = ReplyHeader.from_json(answer[0]), iter(answer[1:])
        memory = next(attached) if header.has_memory else None
        encoded = next(attached) if header.has_up else b""
        up = Encoded(encoded, self._job.codec, self._job.device) if header.has_up else None
        return header.outcome(memory, up).with_bytes(bytes_down, len(encoded))

    def _work(self, requests: Mapping[int, Request]) -> Generator[Progress]:
        """Yield when a worker begins a request, and its answer or why there is none."""
        waiting = deque((key, 0) for key in requests)
        idle, busy = deque(self._living()), dict[Connection, _Running]()
        news: list[Progress] = []
        try:
            while waiting or busy:
                while waiting and idle:
                    key, attempt = waiting.popleft()
                    running = _Running(idle.popleft(), key, attempt, requests[key])
                    running.begin()
                    busy[running.worker.connection] = running
                    if not attempt:
                        news.append(key)
                yield from news  # no worker that could work waits for the caller
                news.clear()
                for running in self._ready(busy):
                    answer = running.finish()
                    del busy[running.worker.connection]
                    if answer is not None:
                        news.append((running.key, answer))
                    elif running.attempt + 1 < ATTEMPTS:
                        waiting.append((running.key, running.attempt + 1))
                    else:
                        news.append((running.key, failures.worker_died()))
                    idle.append(running.worker if running.worker.process.is_alive() else self._replace(running.worker))
                if not news:
                    news.append(None)
            yield from news
        finally:
            for running in busy.values():  # the caller gives up, so their answers are not read
                running.worker.process.kill()
                running.worker.process.join()

    def _living(self) -> list["_Worker"]:
        """All workers; one that has died since it was last used is replaced."""
        return [worker if worker.process.is_alive() else self._replace(worker) for worker in list(self._pool)]

    def _ready(self, busy: Mapping[Connection, "_Running"]) -> list["_Running"]:
        """The requests that are answered, lost or late; after a while without any, none."""
        limits = [running.until for running in busy.values() if running.until is not None]
        timeout = min(QUIET, max(0.0, min(limits) - time.monotonic())) if limits else QUIET
        signaled = [busy[connection] for connection in wait(list(busy), timeout)]  # type: ignore[index]
        answered = [running for running in signaled if running.has_answer()]
        now = time.monotonic()
        late = [running for running in busy.values() if running.until is not None and running.until <= now]
        return answered or late

    def _replace(self, worker: "_Worker") -> "_Worker":
        worker.connection.close()
        worker.process.join()
        fresh = self._new_worker(worker.device, replaces=worker)
        self._pool[self._pool.index(worker)] = fresh
        return fresh

    def _new_worker(self, device: torch.device, replaces: "_Worker | None" = None) -> "_Worker":
        job = self._job if device == self._job.device else replace(self._job, device=device)
        ours, theirs = self._start.Pipe()
        # A fork inherits our ends of all pipes. It must close them, or workers would outlive this process.
        inherited = [*(worker.connection for worker in self._pool if worker is not replaces), ours, *self._private]
        forked = self._start.get_start_method() == "fork"
        process = self._start.Process(
            target=_serve,
            args=(job, theirs, inherited if forked else [], self._threads),
            daemon=True,
            name="tacit worker",
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, device)


@dataclass
class _Worker:
    process: Any
    connection: Connection
    device: torch.device  # where it computes
    ready: bool = False  # it has reported that it is set up


class _Running:
    """A request that a worker is busy with."""

    def __init__(self, worker: _Worker, key: int, attempt: int, request: Request) -> None:
        self.worker, self.key, self.attempt, self._request = worker, key, attempt, request
        self.until: float | None = None  # when it is late; None before its deadline starts, or without one

    def begin(self) -> None:
        if self.worker.ready:
            self._start_deadline()
        request = self._request.values | {"attempt": self.attempt, "attached": len(self._request.attached)}
        with suppress(OSError):  # if the worker is already dead, reading its answer will show it
            for frame in (json.dumps(request).encode(), *self._request.attached):
                self.worker.connection.send_bytes(frame)

    def has_answer(self) -> bool:
        """Whether the worker's signal is its answer or its death, and not only the report that it is set up."""
        if self.worker.ready:
            return True
        try:
            self.worker.connection.recv_bytes()
        except (EOFError, OSError):
            return True
        self.worker.ready = True
        self._start_deadline()
        return False

    def _start_deadline(self) -> None:
        """The time a worker takes to start is not part of its client's time; a replacement takes long."""
        if self._request.deadline is not None:
            self.until = time.monotonic() + self._request.deadline

    def finish(self) -> Answer | None:
        """The answer; None if the worker died. A worker that is late is killed."""
        connection = self.worker.connection
        try:
            if self.until is not None and not connection.poll():
                self.worker.process.kill()
                self.worker.process.join()
                return failures.too_slow(self._request.deadline)
            count = int(connection.recv_bytes())
            return [connection.recv_bytes() for _ in range(count)]
        except (EOFError, OSError):
            self.worker.process.join()
            return None


# --- in the worker ----------------------------------------------------------------------------------------------------


def _serve(job: Job, connection: Connection, inherited: Sequence[Connection | IO[bytes]], threads: int) -> None:
    """Answer one request after the other until the main process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    torch.set_num_threads(threads)
    make_deterministic(job.device)
    tune_malloc()
    with suppress(RuntimeError):  # the first client reports what is wrong with the device
        torch.zeros((), device=job.device)  # a GPU takes seconds to become usable
    with suppress(EOFError, OSError):
        connection.send_bytes(b"ready")
        while True:
            request = json.loads(connection.recv_bytes())
            attached = [connection.recv_bytes() for _ in range(request["attached"])]
            answer = _score(job, request, attached) if "parts" in request else _run(job, request, attached)
            for frame in (str(len(answer)).encode(), *answer):
                connection.send_bytes(frame)


def _score(job: Job, request: dict[str, Any], attached: Frames) -> Frames:
    try:
        model = job.codec.decode(attached[0], job.device)
        scores = {part: score_part(job, model, part, outputs=request["outputs"]) for part in request["parts"]}
    except Exception as error:
        return _header(failures.failed(error))
    values = {part: (score.correct, score.loss, score.count) for part, score in scores.items()}
    outputs = [output.numpy().tobytes() for score in scores.values() for output in score.outputs]
    return [ReplyHeader().to_json().encode(), json.dumps(values).encode(), *outputs]


def _read_scores(frames: Frames) -> dict[int, Score]:
    """The scores of some parts: their numbers, then the outputs of each part, if they were asked for."""
    values, outputs = {int(part): score for part, score in json.loads(frames[0]).items()}, frames[1:]
    arrays = [torch.frombuffer(bytearray(frame), dtype=torch.float32) for frame in outputs]
    found = {part: (array.view(score[2], -1),) for (part, score), array in zip(values.items(), arrays, strict=False)}
    return {part: Score(int(n[0]), float(n[1]), int(n[2]), found.get(part, ())) for part, n in values.items()}


def _run(job: Job, request: dict[str, Any], attached: Frames) -> Frames:
    round, client, attempt = request["round"], request["client"], request["attempt"]
    if job.faults.occurs("crash", job.streams, round, client, attempt):
        os.kill(os.getpid(), signal.SIGKILL)
    if job.deadline is not None and job.faults.occurs("slow", job.streams, round, client):
        time.sleep(job.deadline * 2 + 60)
    try:
        down, *memory = attached
        task = ClientTask(job.codec.decode(down, job.device), memory[0] if memory else None, request["evaluate"])
        result = run_client(job, round, client, task)
        up = None if result.up is None else job.codec.encode(result.up)
        return [*_header(result), *(part for part in (result.memory, up) if part is not None)]
    except Exception as error:
        return _header(failures.failed(error))


def _header(outcome: ClientOutcome) -> Frames:
    return [ReplyHeader.of(outcome).to_json().encode()]
