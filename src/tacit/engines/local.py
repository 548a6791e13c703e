"""Worker processes on one machine: one per core, one torch thread each, the same bits for any number of them.

Workers are forked where that is safe, so they inherit method, network and data without copying them; elsewhere they
are spawned and the data is moved to shared memory first. Main process and workers exchange frames of bytes over
pipes; a worker has one task at a time, and says once when it is set up, which is when the first one's time begins.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Literal

import torch

from tacit.engines.loop import Absent, Arrived, Job, MethodFailedError, Parcel
from tacit.engines.work import part_count, score_part, visit
from tacit.errors import TacitError
from tacit.learn import Score
from tacit.machine import cores
from tacit.params import Params

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
ATTEMPTS = 2  # a task whose worker dies is given to another worker once
GRACE = 5.0  # seconds that workers have to finish what they are at, all together, before they are killed

Frames = list[bytes]
Start = Literal["fork", "spawn"]


@dataclass(frozen=True)
class Task:
    """One piece of work for a worker: a request and its attachments."""

    request: dict[str, Any]
    attached: tuple[bytes, ...]
    deadline: float | None = None


class LocalCourier:
    """A pool of worker processes."""

    def __init__(self, job: Job, workers: int, start: Start | None = None, private: Sequence[IO[bytes]] = ()) -> None:
        """Start the workers, by fork where that is safe unless `start` says otherwise; `close` ends them.

        `private` are open files that forked workers must not hold on to when this process is gone, such as a lock.
        """
        safe = sys.platform == "linux" and job.device.type == "cpu"
        start = start or ("fork" if safe else "spawn")
        if start == "spawn":
            job.federation.share_memory()
        self._job, self._private = job, private
        self._start: Any = multiprocessing.get_context(start)  # fork and spawn share no public type
        self._pool: list[_Worker] = []
        for _ in range(workers):
            self._pool.append(self._new_worker())

    def exchange(self, round: int, parcels: Mapping[int, Parcel]) -> Mapping[int, Arrived | Absent]:
        """Every client's outcome; the largest clients go first, so that no worker is left waiting for one."""
        job, encoded = self._job, {}
        for parcel in parcels.values():
            if id(parcel.down) not in encoded:
                encoded[id(parcel.down)] = job.codec.encode(parcel.down)
        starts = job.federation.starts
        order = sorted(parcels, key=lambda client: int(starts[client] - starts[client + 1]))
        tasks = {}
        for client in order:
            parcel = parcels[client]
            request = {"round": round, "client": client, "evaluate": parcel.evaluate}
            attached = (encoded[id(parcel.down)], *([] if parcel.memory is None else [parcel.memory]))
            tasks[client] = Task(request, attached, job.deadline)
        results = self._run(tasks)
        return {client: self._outcome(results[client], len(tasks[client].attached[0])) for client in sorted(parcels)}

    def evaluate(self, model: Params) -> Score:
        """The model's score on the whole test set, the parts dealt to the workers and added up in order."""
        count, encoded = part_count(self._job), self._job.codec.encode(model)
        workers = len(self._pool)
        tasks = {w: Task({"parts": list(range(w, count, workers))}, (encoded,)) for w in range(min(workers, count))}
        scores: dict[int, Score] = {}
        for result in self._run(tasks).values():
            if isinstance(result, Absent):
                raise TacitError(f"evaluation failed ({result.reason}); resume the run to try again")
            answer = json.loads(result[0])
            if "failed" in answer:
                sentence = f"evaluation of {type(self._job.method).__name__} {answer['failed']}; mend it, then resume"
                raise MethodFailedError(sentence) from RuntimeError(answer["detail"])
            scores |= {int(part): Score(*score) for part, score in answer["scores"].items()}
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

    def _outcome(self, result: Frames | Absent, bytes_down: int) -> Arrived | Absent:
        if isinstance(result, Absent):
            return replace(result, bytes_down=bytes_down)
        answer = json.loads(result[0])
        if "failed" in answer:
            return Absent(answer["failed"], answer["detail"], bytes_down)
        attached = iter(result[1:])
        memory = next(attached) if answer["memory"] else None
        encoded = next(attached) if answer["up"] else b""
        up = self._job.codec.decode(encoded, self._job.device) if answer["up"] else None
        return Arrived(up, memory, answer["metrics"], bytes_down, len(encoded))

    def _run(self, tasks: Mapping[int, Task]) -> dict[int, Frames | Absent]:
        """Each task's answer, or why there is none."""
        waiting = deque((key, 0) for key in tasks)
        results: dict[int, Frames | Absent] = {}
        idle, busy = deque(self._pool), dict[Connection, _Errand]()
        while waiting or busy:
            while waiting and idle:
                key, attempt = waiting.popleft()
                errand = _Errand(idle.popleft(), key, attempt, tasks[key])
                errand.begin()
                busy[errand.worker.connection] = errand
            for errand in self._ready(busy):
                del busy[errand.worker.connection]
                result = errand.finish()
                if result is not None:
                    results[errand.key] = result
                elif errand.attempt + 1 < ATTEMPTS:
                    waiting.append((errand.key, errand.attempt + 1))
                else:
                    results[errand.key] = Absent("its worker died twice")
                idle.append(errand.worker if errand.worker.process.is_alive() else self._replace(errand.worker))
        return results

    def _ready(self, busy: Mapping[Connection, "_Errand"]) -> list["_Errand"]:
        """Errands that answered, died or ran out of time; waits until there is news, which may be of none of these."""
        limits = [errand.until for errand in busy.values() if errand.until is not None]
        timeout = max(0.0, min(limits) - time.monotonic()) if limits else None
        heard = [busy[connection] for connection in wait(list(busy), timeout)]  # type: ignore[index]
        answered = [errand for errand in heard if errand.answers()]
        now = time.monotonic()
        late = [errand for errand in busy.values() if errand.until is not None and errand.until <= now]
        return answered or late

    def _replace(self, worker: "_Worker") -> "_Worker":
        worker.connection.close()
        worker.process.join()
        fresh = self._new_worker(but=worker)
        self._pool[self._pool.index(worker)] = fresh
        return fresh

    def _new_worker(self, but: "_Worker | None" = None) -> "_Worker":
        ours, theirs = self._start.Pipe()
        # A fork inherits our ends of all pipes; it must close them, or the death of this process would go unnoticed.
        inherited = [*(worker.connection for worker in self._pool if worker is not but), ours, *self._private]
        forked = self._start.get_start_method() == "fork"
        process = self._start.Process(
            target=_serve, args=(self._job, theirs, inherited if forked else []), daemon=True, name="tacit worker"
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)


@dataclass
class _Worker:
    process: Any
    connection: Connection
    ready: bool = False  # it has said that it is set up


class _Errand:
    """A task on its way at a worker."""

    def __init__(self, worker: _Worker, key: int, attempt: int, task: Task) -> None:
        self.worker, self.key, self.attempt, self._task = worker, key, attempt, task
        self.until: float | None = None  # when it is late, once its time runs

    def begin(self) -> None:
        if self.worker.ready:
            self._start_clock()
        request = self._task.request | {"attempt": self.attempt, "attached": len(self._task.attached)}
        with suppress(OSError):  # a worker that is dead already shows when it is asked for its answer
            for frame in (json.dumps(request).encode(), *self._task.attached):
                self.worker.connection.send_bytes(frame)

    def answers(self) -> bool:
        """Whether what comes from the worker is its answer or its end, and not only that it is set up."""
        if self.worker.ready:
            return True
        try:
            self.worker.connection.recv_bytes()
        except (EOFError, OSError):
            return True
        self.worker.ready = True
        self._start_clock()
        return False

    def _start_clock(self) -> None:
        """A client has its whole time, however long its worker took to start: one that replaced another takes long."""
        if self._task.deadline is not None:
            self.until = time.monotonic() + self._task.deadline

    def finish(self) -> Frames | Absent | None:
        """The answer; None where the worker died; a worker that is late is killed."""
        connection = self.worker.connection
        try:
            if self.until is not None and not connection.poll():
                self.worker.process.kill()
                self.worker.process.join()
                return Absent(f"took longer than {self._task.deadline} s")
            count = int(connection.recv_bytes())
            return [connection.recv_bytes() for _ in range(count)]
        except (EOFError, OSError):
            self.worker.process.join()
            return None


def _serve(job: Job, connection: Connection, inherited: Sequence[Connection | IO[bytes]]) -> None:
    """A worker's life: one request after the other until the main process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    repeatable(job.device)
    keep_freed_memory()
    with suppress(RuntimeError):  # what is wrong with a device, the first client says
        torch.zeros((), device=job.device)  # a GPU takes seconds until it can be used
    with suppress(EOFError, OSError):
        connection.send_bytes(b"ready")
        while True:
            request = json.loads(connection.recv_bytes())
            attached = [connection.recv_bytes() for _ in range(request["attached"])]
            answer = _score(job, request, attached) if "parts" in request else _visit(job, request, attached)
            for frame in (str(len(answer)).encode(), *answer):
                connection.send_bytes(frame)


def keep_freed_memory() -> None:
    """Have the C library keep what tensors give back: asking the kernel anew for every large one costs a fifth."""
    with suppress(OSError, AttributeError):  # other C libraries do without
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 1 << 25)
        library.mallopt(M_TRIM_THRESHOLD, 1 << 30)


def _score(job: Job, request: dict[str, Any], attached: Frames) -> Frames:
    try:
        model = job.codec.decode(attached[0], job.device)
        scores = {part: score_part(job, model, part) for part in request["parts"]}
    except Exception as error:
        return _failed(error)
    return [json.dumps({"scores": {part: (s.correct, s.loss, s.count) for part, s in scores.items()}}).encode()]


def _visit(job: Job, request: dict[str, Any], attached: Frames) -> Frames:
    round, client, attempt = request["round"], request["client"], request["attempt"]
    if job.faults.strikes("crash", job.streams, round, client, attempt):
        os.kill(os.getpid(), signal.SIGKILL)
    if job.deadline is not None and job.faults.strikes("slow", job.streams, round, client):
        time.sleep(job.deadline * 2 + 60)
    try:
        down, memory = job.codec.decode(attached[0], job.device), attached[1] if len(attached) > 1 else None
        done = visit(job, round, client, memory, down, request["evaluate"])
        head = {"metrics": done.metrics, "memory": done.memory is not None, "up": done.up is not None}
        up = None if done.up is None else job.codec.encode(done.up)
        return [json.dumps(head).encode(), *(part for part in (done.memory, up) if part is not None)]
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> Frames:
    """The answer that says what went wrong, while the error is being handled."""
    answer = {"failed": f"failed: {type(error).__name__}: {error}", "detail": traceback.format_exc()}
    return [json.dumps(answer).encode()]


def repeatable(device: torch.device) -> None:
    """Have this process compute the same bits every time on a GPU, as a CPU does by itself; what can not will warn."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # its matrix products ask for this
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)


def default_workers(device: torch.device) -> int:
    """One for each core this process may use; a single one beside a GPU, where each would hold a context of its own."""
    return cores() if device.type == "cpu" else 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block with torch on one thread: more would sum in another order, and fight with the workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
