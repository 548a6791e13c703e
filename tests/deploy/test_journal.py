"""The journal of a site: everything that leaves is in it, and nothing else about the site."""

import json
import multiprocessing
import os
import traceback
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy import journal
from tacit.deploy.journal import Entry
from tacit.runs.build import build_job
from tests.deploy import places
from tests.refusals import refused

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy.site import SiteSafeguards, introduce, open_workspace
from tacit.engines.flower import ClientNodes, Departure, FlowerTransport, GridClient, client_app
from tests.engines.grid import DirectGrid, played

pytestmark = pytest.mark.flower

ENTRY = Entry("2026-01-02T03:04:05+00:00", "update", "run-1", 1, "fedavg", ("w", "n"), 1000, "192.0.2.7:8443")


def run_with_sites(folder: Path, **options: Any) -> tuple[Path, list[Any]]:
    """A run in which the site `a` takes part; its folder, and the records of the rounds."""
    config = places.hub_config(folder, partition="iid", labels="all", clients=1, **options)
    path = places.agree(places.site(folder, "a"), config)
    grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), [places.member(path)])
    job = build_job(config)[0]
    transport = FlowerTransport(job, ClientNodes(GridClient(grid), places.run_info(config), {"a": 0}))
    return path.parent, played(job, transport, folder / "run")[1]


def test_every_reply_is_in_the_journal_with_its_bytes(tmp_path: Path) -> None:
    folder, records = run_with_sites(tmp_path, method="scaffold")
    found = journal.read(folder)
    assert [(entry.kind, entry.round) for entry in found.entries] == [
        ("introduction", None),
        ("update", 1),
        ("update", 2),
        ("update", 3),
    ]
    assert found.entries[0].fields == ("name", "samples", "labeled", "shares_scores", "version")
    assert {entry.run for entry in found.entries} == {"run-1"}
    assert {entry.method for entry in found.entries} == {"scaffold"}
    assert {"dy", "dc", "steps"} <= set(found.entries[1].fields)
    for record, entry in zip(records, found.entries[1:], strict=True):
        assert 0 < entry.bytes - record.traffic[0][1] < 1000  # the header, with numbers about the round, comes on top
    assert (folder / "journal.jsonl").stat().st_mode & 0o777 == 0o600
    assert str(tmp_path) not in (folder / "journal.jsonl").read_text()


def test_refusals_are_in_the_journal(tmp_path: Path) -> None:
    folder, _ = run_with_sites(tmp_path, rounds=1, method="fedavg")
    longer = places.run_info(places.hub_config(tmp_path, partition="iid", labels="all", clients=1, rounds=2))
    grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), [places.member(folder / "site.toml")])
    assert [info.refusal != "" for info in ClientNodes(GridClient(grid), longer, {"a": 0}).infos().values()] == [True]
    last = journal.read(folder).entries[-1]
    assert (last.kind, last.fields) == ("refusal", ("name",))
    assert "it has 2 rounds, and 1 were agreed" in last.reason


def test_an_error_while_training_leaves_as_a_code_and_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tacit.methods.fedavg import FedAvg

    def fail(*_: Any) -> None:
        raise ValueError("/home/ann/smith_1950.png is odd")

    monkeypatch.setattr(FedAvg, "client_update", fail)
    folder, records = run_with_sites(tmp_path, rounds=2, method="fedavg", **{"engine.min_clients": 0})
    sent = "".join(f"{record.skipped} {record.details}" for record in records)
    assert "failed: ValueError, failure 1 of this site" in records[0].skipped[0]
    assert "failed: ValueError, failure 2 of this site" in records[1].skipped[0]
    for private in ("smith", "Traceback", str(tmp_path), "client_update"):
        assert private not in sent
        assert private not in (folder / "journal.jsonl").read_text()
    shown = capsys.readouterr()
    assert "smith_1950.png is odd" in shown.out + shown.err
    assert "Traceback" in shown.out + shown.err


def test_nothing_leaves_a_site_that_cannot_write_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    config = places.hub_config(tmp_path, partition="iid", labels="all", clients=1)
    path = places.agree(places.site(tmp_path, "a"), config)
    monkeypatch.setattr(os, "write", full)
    with refused("storage.disk-full") as caught:
        SiteSafeguards().record(places.run_info(config), places.member(path), Departure(0, ("w",), 9))
    assert str(tmp_path) not in "".join(traceback.format_exception(caught.error))


def add_many(folder: Path) -> None:
    for _ in range(50):
        journal.append(folder, ENTRY)


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    workers = [multiprocessing.get_context("fork").Process(target=add_many, args=[tmp_path]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    found = journal.read(tmp_path)
    assert (len(found.entries), found.damaged, found.broken) == (200, 0, 0)


@pytest.mark.parametrize("change, damaged, broken", [("edit", 0, 1), ("remove", 0, 1), ("cut", 1, 0)])
def test_a_changed_journal_is_noticed(change: str, damaged: int, broken: int, tmp_path: Path) -> None:
    for _ in range(3):
        journal.append(tmp_path, ENTRY)
    file = tmp_path / "journal.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[1] = lines[1].replace(b'"bytes": 1000', b'"bytes": 1')
    elif change == "remove":
        del lines[1]
    else:
        lines[2] = lines[2][:20]  # as a killed process leaves it; the next line begins anew
    file.write_bytes(b"".join(lines))
    journal.append(tmp_path, ENTRY)
    found = journal.read(tmp_path)
    assert (found.damaged, found.broken) == (damaged, broken)
    assert found.entries[-1] == ENTRY


def test_the_command_prints_the_journal_in_plain_words(tmp_path: Path) -> None:
    path = places.site(tmp_path, "a")
    for entry in (
        Entry("2026-01-02T03:04:04+00:00", "introduction", "run-1", None, "fedavg", ("name", "samples"), 20),
        ENTRY,
        Entry("2026-01-02T03:04:06+00:00", "refusal", "run-2", None, "fedmix", ("name",), 90, reason="not agreed"),
    ):
        journal.append(path.parent, entry)
    shown = CliRunner().invoke(app, ["site", "journal", str(path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[:3] == [
        "2026-01-02T03:04:04+00:00  run run-1 (fedavg): said name, samples; 20 B",
        "2026-01-02T03:04:05+00:00  run run-1, round 1 (fedavg): sent w, n; 1.0 kB",
        "2026-01-02T03:04:06+00:00  run run-2 (fedmix): refused: not agreed; 90 B",
    ]
    assert "in 3 replies to 2 runs" in shown.stdout
    assert len(CliRunner().invoke(app, ["site", "journal", str(path), "--last", "1"]).stdout.splitlines()) == 2
    assert json.loads((path.parent / "journal.jsonl").read_text().splitlines()[0])["kind"] == "introduction"
