"""What `tacit watch` costs with many long runs: processor time while nothing happens, a page's numbers, memory.

    python benchmarks/watch.py [--runs 200] [--rounds 1000]

The runs are written by this script, as the records of training would be. The board then reads them, follows them for
ten seconds in which nothing changes, and answers as for a page that opens: all runs, and the series of as many as it
draws.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path

import tomli_w

from tacit.dashboard.board import Board
from tacit.engines.record import RoundRecord

IDLE = 10.0  # seconds
DRAWN = 48  # runs whose curves a page shows at once
CLIENTS = 10
METRICS = ("loss_supervised", "loss_unsupervised", "pseudo_kept", "pseudo_accuracy")


def record(round: int) -> RoundRecord:
    """A round of ten clients that learn with pseudo-labels."""
    spread = {"mean": 0.5 + round / 1e4, "min": 0.25, "max": 0.75}
    return RoundRecord(
        round=round,
        seconds=2.0,
        accuracy=1 - 1 / (round + 2),
        loss=2 / (round + 1),
        local_accuracy=None,
        clients=CLIENTS,
        steps=10 * CLIENTS,
        bytes_down=1000 * CLIENTS,
        bytes_up=500 * CLIENTS,
        traffic=dict.fromkeys(range(CLIENTS), (1000, 500)),
        metrics=dict.fromkeys(METRICS, spread),
        server={"steps": 5.0},
        skipped={},
    )


def write(folder: Path, runs: int, rounds: int) -> int:
    """Write the runs; the bytes of their logs."""
    log = "".join(f"{record(round).to_json()}\n" for round in range(rounds))
    for number in range(runs):
        place = folder / f"run-{number:04}"
        place.mkdir()
        config = {"seed": number, "rounds": rounds, "method": {"name": "fedavg+fixmatch"}}
        (place / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
        (place / "rounds.jsonl").write_text(log, encoding="utf-8")
    return runs * len(log)


def resident() -> float:
    """The memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def read_all(board: Board) -> None:
    """Look until every run has been read."""
    while not board.complete:
        board.look()


def idle(board: Board) -> float:
    """Processor seconds in each second in which nothing happens."""
    until = threading.Event()
    follower = threading.Thread(target=board.follow, args=(until,))
    before = time.process_time()
    follower.start()
    time.sleep(IDLE)
    until.set()
    follower.join()
    return (time.process_time() - before) / IDLE


def main() -> None:
    """Write the runs, follow them, and print what that takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-watch-") as name:
        size = write(Path(name), given.runs, given.rounds)
        before, began = resident(), time.process_time()
        board = Board([Path(name)])
        read_all(board)
        print(f"{given.runs} runs x {given.rounds:,} rounds, logs {size / 1e6:.0f} MB")
        print(f"first read            {time.process_time() - began:8.2f} CPU seconds")
        print(f"idle                  {idle(board):8.4f} CPU seconds a second")
        wanted = dict.fromkeys(list(board.runs)[:DRAWN], (0, 0))
        began, cpu = time.monotonic(), time.process_time()
        answer = json.dumps(board.updates("", -1, wanted))
        spent = f"{time.monotonic() - began:.2f} s, {time.process_time() - cpu:.2f} CPU seconds"
        print(f"page with {len(wanted)} series   {len(answer) / 1e6:8.1f} MB, {spent}")
        print(f"memory                {resident():8.0f} MB, of which the runs {resident() - before:.0f} MB")


if __name__ == "__main__":
    main()
