"""Predict blocks of samples on several cores: one process each, one torch thread each, results in order."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait

from tacit.errors import TacitError
from tacit.inference.model import Model
from tacit.inference.prediction import Columns, Predicted, predict_block
from tacit.inference.samples import Block
from tacit.process import use_one_thread

AHEAD = 2  # blocks per worker that are read before the first is done, so that no worker waits and memory stays small

_OPENED: list[tuple[Model, Columns]] = []  # in a worker: what it predicts with


def predict_blocks(
    blocks: Iterable[Block], open_model: Callable[[], Model], columns: Columns, workers: int
) -> Generator[tuple[Block, Predicted]]:
    """Each block with its predictions, in the given order, whatever the number of workers; 0: in this process."""
    if not workers:
        model = open_model()
        yield from ((block, predict_block(model, block, columns)) for block in blocks)
        return
    start = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(workers, start, _set_up, (open_model, columns)) as pool:
        try:
            yield from _in_order(pool, blocks, workers * AHEAD)
        except BrokenProcessPool as error:
            problem = "a worker process died, perhaps because memory ran out"
            remedy = "run the same command again with fewer --workers; it continues"
            raise TacitError(problem, remedy, code="predict.worker-died", resumable=True) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, blocks: Iterable[Block], ahead: int) -> Generator[tuple[Block, Predicted]]:
    waiting: deque[tuple[Block, Future[Predicted]]] = deque()
    for block in blocks:
        waiting.append((block, pool.submit(_predict, block)))
        if len(waiting) > ahead:
            first, result = waiting.popleft()
            yield first, result.result()
    for block, result in waiting:
        yield block, result.result()


def _set_up(open_model: Callable[[], Model], columns: Columns) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_one_thread()
    _OPENED.append((open_model(), columns))


def _end_with_parent() -> None:
    """End this process once the main process is gone; a pool would leave it waiting for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _predict(block: Block) -> Predicted:
    model, columns = _OPENED[-1]
    return predict_block(model, block, columns)
