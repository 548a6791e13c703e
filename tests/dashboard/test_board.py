"""Runs are followed while they are written, moved, deleted and damaged."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tacit.dashboard import followed
from tacit.dashboard.board import Board
from tacit.dashboard.details import of_run
from tacit.engines.events import RoundProgress
from tacit.runs.directory import planned
from tacit.runs.directory.planned import Plan, PlannedRun
from tacit.runs.directory.round_tail import RoundTail
from tests.dashboard.invented import a_run, append, by_name, line, looked, working
from tests.report.runs import write_counts


def test_a_finished_run_is_summarised(tmp_path: Path) -> None:
    a_run(tmp_path / "a", 5, seed=3, data={"name": "fashion-small"})
    run = by_name(looked(Board([tmp_path])))["a"]
    assert (run["status"], run["done"], run["rounds"], run["seed"], run["data"]) == (
        "finished",
        5,
        5,
        3,
        "fashion-small",
    )
    assert run["bytes"] == 5 * 1500
    assert run["steps"] == 5 * 15  # ten at the clients and five at the server
    assert run["best"] == run["accuracy"] == pytest.approx(line(4)["accuracy"], abs=1e-5)


def test_new_rounds_arrive_and_only_they_are_sent(tmp_path: Path) -> None:
    folder, board = a_run(tmp_path / "a", 3, 9), Board([tmp_path])
    first = looked(board)
    (id,) = first["ids"]
    append(folder, line(3), line(4))
    board.look()
    news = board.updates(board.boot, first["revision"], {id: (0, 3)})
    assert [run["done"] for run in news["runs"]] == [5]
    assert news["series"][id]["from"] == 3
    assert news["series"][id]["rounds"] == [4, 5]
    assert "ids" not in news
    later = board.updates(board.boot, news["revision"], {id: (0, 5)})
    assert (later["runs"], later["series"]) == ([], {})


def test_another_process_of_the_page_starts_over(tmp_path: Path) -> None:
    a_run(tmp_path / "a", 3)
    board = Board([tmp_path])
    looked(board)
    assert len(board.updates("other", 10**6, {})["runs"]) == 1


def test_a_running_run_shows_its_round_and_a_killed_one_is_stopped(tmp_path: Path) -> None:
    folder, board = a_run(tmp_path / "a", 2, 9), Board([tmp_path])
    progress = RoundProgress(2, (0, 1, 2, 3), {1}, {0}, {2: "gone"}, {0: 1.5})
    with working(folder, progress):
        run = by_name(looked(board))["a"]
        assert run["status"] == "running"
        assert run["current"]["counts"] == {"failed": 1, "working": 1, "answered": 1, "waiting": 1}
        assert run["current"]["clients"][0] == {"name": "client 2", "state": "failed", "about": "gone"}
    run = by_name(looked(board))["a"]
    assert run["status"] == "stopped"
    assert run["current"] is None
    assert "tacit resume" in run["problem"]


def test_a_stalled_run_is_flagged_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, board = a_run(tmp_path / "a", 2, 9), Board([tmp_path])
    long_ago = time.time() - 10 * followed.QUIET
    for path in folder.iterdir():
        os.utime(path, (long_ago, long_ago))
    with working(folder):
        assert by_name(looked(board))["a"]["stalled"] is True
        append(folder, line(2))
        assert by_name(looked(board))["a"]["stalled"] is False


def test_signs_of_collapse_and_divergence_are_shown(tmp_path: Path) -> None:
    folder, board = a_run(tmp_path / "a", 2, 9), Board([tmp_path])
    (folder / "notices.json").write_text('{"collapse.one-class": "class coat takes over"}')
    error = {
        "problem": "diverged in round 3",
        "remedy": "lower the rate",
        "code": "engine.diverged",
        "resumable": False,
    }
    (folder / "error.json").write_text(json.dumps(error))
    run = by_name(looked(board))["a"]
    assert run["notices"] == ["class coat takes over"]
    assert (run["status"], run["problem"]) == ("diverged", "diverged in round 3; lower the rate")


def test_a_moved_run_is_followed_at_its_new_place_and_a_deleted_one_is_gone(tmp_path: Path) -> None:
    folder, board = a_run(tmp_path / "a", 2, 9), Board([tmp_path])
    before = looked(board)["ids"]
    folder.rename(tmp_path / "b")
    answer = looked(board)
    assert list(by_name(answer)) == ["b"]
    assert answer["ids"] != before
    shutil.rmtree(tmp_path / "b")
    assert looked(board)["ids"] == []


@pytest.mark.parametrize("name", ["config.toml", "split.json", "round.json", "error.json", "notices.json", "end.json"])
@pytest.mark.parametrize("content", [b"\xff\x00nonsense", b"", b"[]", b"{" * 100_000])
def test_a_damaged_file_does_not_disturb_the_others(tmp_path: Path, name: str, content: bytes) -> None:
    folder, board = a_run(tmp_path / "a", 2, 9), Board([tmp_path])
    a_run(tmp_path / "b", 2)
    (folder / "run.json").write_text("{}")
    (folder / name).write_bytes(content)
    runs = by_name(looked(board))
    assert runs["b"]["status"] == "finished"
    assert runs["a"]["status"] == ("broken" if name == "config.toml" else "stopped")
    of_run(board.runs[runs["a"]["id"]])


def test_damaged_and_unfinished_lines_are_left_out(tmp_path: Path) -> None:
    folder, board = a_run(tmp_path / "a", 2, 9), Board([tmp_path])
    with (folder / "rounds.jsonl").open("a") as file:
        file.write("nonsense\n" + json.dumps(line(2)) + "\n" + json.dumps(line(3))[:20])
    run = by_name(looked(board))["a"]
    assert (run["done"], run["damaged"]) == (3, 1)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line(3))[20:] + "\n")
    assert by_name(looked(board))["a"]["done"] == 4


def test_a_log_that_was_cut_and_grew_again_is_read_from_its_start(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a", 6, 9)
    tail = RoundTail(folder / "rounds.jsonl")
    assert [each.round for each in tail.read()] == [0, 1, 2, 3, 4, 5]
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:3]))
    append(folder, *[line(n, 0.5) for n in range(3, 8)])  # longer than before: only the content tells
    assert [each.round for each in tail.read()] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert tail.epoch == 1
    assert tail.read() == []


def test_a_log_is_not_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_run(tmp_path / "a", 3, 9)
    tail = RoundTail(folder / "rounds.jsonl")
    tail.read()
    read: list[int] = []
    take = RoundTail._take

    def counted(self: RoundTail, line: Any, found: Any) -> Any:
        read.append(1)
        return take(self, line, found)

    monkeypatch.setattr(RoundTail, "_take", counted)
    append(folder, line(3))
    assert [each.round for each in tail.read()] == [3]
    assert len(read) == 1


def test_a_plan_shows_what_is_still_to_run(tmp_path: Path) -> None:
    runs = tuple(PlannedRun(f"{row}/seed-0", row, 0, 4, "IID") for row in ("fedavg", "semifl"))
    board = Board([tmp_path])
    with planned.working(tmp_path / "table", Plan("benchmark", "Table 4", runs)):
        a_run(tmp_path / "table" / "fedavg" / "seed-0", 4)
        answer = looked(board)
        (group,) = answer["groups"]
        assert (group["title"], group["kind"], group["working"]) == ("Table 4", "benchmark", True)
        assert {(run["label"], run["column"], run["status"]) for run in answer["runs"]} == {
            ("fedavg", "IID", "finished"),
            ("semifl", "IID", "waiting"),
        }
        ids = set(answer["ids"])
        a_run(tmp_path / "table" / "semifl" / "seed-0", 1, 4)
        answer = looked(board)
        assert set(answer["ids"]) == ids
        assert {run["status"] for run in answer["runs"]} == {"finished", "stopped"}
    assert looked(board)["groups"][0]["working"] is False


def test_a_plan_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    runs = (PlannedRun("../outside", "a", 0, 4), PlannedRun("/etc", "b", 0, 4), PlannedRun("inside", "c", 0, 4))
    with planned.working(tmp_path / "x", Plan("comparison", "x", runs)):
        assert [run["label"] for run in looked(Board([tmp_path]))["runs"]] == ["c"]


def test_trials_of_a_search_are_named_by_what_differs(tmp_path: Path) -> None:
    for number, rate in enumerate((0.1, 0.2)):
        folder = a_run(tmp_path / "tune" / "trials" / f"00{number}", 2, train={"lr": rate, "batch": 8})
        (folder / "tune.json").write_text("{}")
    assert {run["label"] for run in looked(Board([tmp_path]))["runs"]} == {
        "trial 000: train.lr=0.1",
        "trial 001: train.lr=0.2",
    }


def test_symbolic_links_and_other_folders_are_not_followed(tmp_path: Path) -> None:
    a_run(tmp_path / "elsewhere" / "a", 2)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "other").mkdir()
    (tmp_path / "here" / "other" / "config.toml").write_text("[superlink]\n")
    assert looked(Board([tmp_path / "here"]))["ids"] == []


def test_details_have_who_holds_what_and_who_was_left_out(tmp_path: Path) -> None:
    from tacit.report.history import load

    folder, board = a_run(tmp_path / "a", 2), Board([tmp_path])
    write_counts(load(folder), "x", [[1, 0, 0], [0, 2, 0]], [[5, 5, 1], [0, 0, 0]])
    append(folder, line(2, skipped={"1": "upload lost"}))
    (run,) = looked(board)["runs"]
    found = of_run(board.runs[run["id"]])
    assert found["skips"] == [{"round": 3, "client": "client 1", "reason": "upload lost"}]
    assert [(each["labeled"], each["unlabeled"]) for each in found["holdings"]["clients"]] == [(1, 11), (2, 0)]
    assert found["log"][-1].startswith("round 3/")
    assert {"config.toml", "rounds.jsonl"} <= {file["name"] for file in found["files"]}


def test_a_panel_that_fails_says_so(tmp_path: Path) -> None:
    def broken() -> dict[str, object]:
        raise ValueError("no such hub")

    board = Board([tmp_path], {"fine": lambda: {"kind": "hub"}, "broken": broken})
    board.look_at_panels()
    panels = board.updates("", -1, {})["panels"]
    assert panels["fine"] == {"kind": "hub"}
    assert panels["broken"]["problem"] == "no such hub"
