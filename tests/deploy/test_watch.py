"""What the pages of a hub and of a site say."""

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.deploy import journal
from tacit.deploy.journal import Entry
from tacit.deploy.settings import Hub
from tacit.deploy.site_watch import in_words, site_panel
from tests.dashboard.invented import a_run, append, line
from tests.deploy import places

UPDATE = Entry("2026-01-01T00:00:00+00:00", "update", "abcdefgh12", 3, "fedavg", ("w", "n"), 1500, "192.0.2.7:8443")


def entry(**changes: Any) -> Entry:
    return Entry(**{**vars(UPDATE), **changes})


@pytest.mark.parametrize(
    "given, text",
    [
        (
            UPDATE,
            "Sent model weights and the number of samples behind them after round 3 of run abcdefgh (fedavg); 1.5 kB "
            "to 192.0.2.7:8443",
        ),
        (
            entry(kind="introduction", round=None, fields=("name", "samples", "labeled"), hub=""),
            "Sent its name, its number of samples and its number of labels to the hub for run abcdefgh (fedavg);"
            " 1.5 kB",
        ),
        (
            entry(kind="refusal", reason="old", hub=""),
            "Refused to take part in run abcdefgh (fedavg): old; 1.5 kB",
        ),
        (
            entry(kind="exchange", fields=("encrypted shares for 2 others",), hub=""),
            "Sent encrypted shares for 2 others for the secure sum of round 3 of run abcdefgh (fedavg); 1.5 kB",
        ),
        (
            entry(fields=("score accuracy",), scores={"accuracy": 0.5}, hub=""),
            "Sent 1 scores of the final model of run abcdefgh (fedavg); 1.5 kB",
        ),
    ],
)
def test_an_entry_of_the_journal_is_one_sentence(given: Entry, text: str) -> None:
    assert in_words(given) == text


def test_a_site_sees_what_left_what_never_does_and_how_to_leave(tmp_path: Path) -> None:
    path = places.site(tmp_path, "north", key="north.key", port=1)
    panel = site_panel(path)
    assert panel()["entries"] == []
    journal.append(path.parent, UPDATE)
    journal.append(path.parent, entry(round=4, bytes=500))
    facts = panel()
    assert (facts["bytes"], facts["replies"], facts["runs"], facts["round"]) == (2000, 2, 1, 4)
    assert "after round 4" in facts["entries"][0]["text"]  # the latest first
    assert facts["state"] == "not joined"
    assert {"samples", "individual labels", "the private key"} <= set(facts["never"])
    assert "Not measured yet" in facts["scores"][0]
    assert any("share_scores is off" in line for line in facts["never"])
    assert any("tacit hub remove north" in line for line in facts["leave"])
    json.dumps(facts)


def test_scores_on_the_own_samples_are_shown_once_they_were_measured(tmp_path: Path) -> None:
    path = places.site(tmp_path, "north", share_scores=True, port=1)
    panel = site_panel(path)
    assert "Not measured yet" in panel()["scores"][0]
    found = {"accuracy": 0.875, "log_loss": 1.25, "brier": 0.25, "of a newer version": 2.5}
    journal.append(path.parent, entry(fields=tuple(f"score {name}" for name in found), scores=found))
    numbers = "accuracy 87.5%, log loss 1.250, Brier score 0.250, of a newer version 2.500"
    assert panel()["scores"] == [f"run abcdefgh: {numbers} for the final model, sent to the hub"]


def test_a_changed_journal_is_noticed(tmp_path: Path) -> None:
    path = places.site(tmp_path, "north", port=1)
    for round in (1, 2, 3):
        journal.append(path.parent, entry(round=round))
    file = path.parent / journal.FILE
    file.write_text(file.read_text().replace('"round": 2', '"round": 7'))
    assert "changed" in site_panel(path)()["warning"]


@pytest.mark.flower
def test_a_hub_shows_its_sites_their_declarations_and_refusals(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tacit.deploy.hub_directory import INTRODUCTIONS, HubDirectory
    from tacit.deploy.hub_watch import hub_panel, run_folders

    hub = HubDirectory.create(tmp_path / "hub", Hub())
    assert run_folders(hub) == [hub.path]
    panel = hub_panel(hub.path)
    assert panel()["sites"] == []
    folder = a_run(hub.runs_folder / "first", 2, 9)
    (folder / "sites.json").write_text(json.dumps({"run": "x", "names": ["north", "south"]}))
    append(folder, line(2, skipped={"1": "no answer"}))
    said = {
        "north": {"samples": 1200, "labeled": 40, "refusal": "", "version": "7.8.9"},
        "south": {"samples": 0, "labeled": 0, "refusal": "wrong classes; rename the folders"},
    }
    (folder / INTRODUCTIONS).write_text(json.dumps(said))
    facts = panel()
    north, south = facts["sites"]
    assert (north["name"], north["declares"], north["joined"], north["left_out"]) == (
        "north",
        "1,200 samples, 40 with a label",
        3,
        0,
    )
    assert (south["refusal"], south["joined"], south["left_out"]) == ("wrong classes; rename the folders", 2, 1)
    assert facts["running"] is False
    assert facts["storage"] > 1000
    assert facts["certificate"].startswith("until 20")
    assert facts["certificate_note"] == ""
    assert (north["version"], south["version"]) == ("7.8.9", "unknown")


@pytest.mark.flower
def test_a_hub_tells_which_runs_protect_samples_and_how_far(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from tacit.deploy.hub_directory import HubDirectory
    from tacit.deploy.hub_watch import hub_facts

    hub = HubDirectory.create(tmp_path / "hub", Hub())
    assert hub_facts(hub)["privacy"] == "no run yet"
    a_run(hub.runs_folder / "plain", 1)
    assert hub_facts(hub)["privacy"] == "no differential privacy"
    folder = a_run(hub.runs_folder / "noisy", 0, 9, protect={"sample_noise": 0.8, "combine": "median"})
    facts = hub_facts(hub)
    assert facts["privacy"] == "DP-SGD in 1 of 2 runs"
    assert "noisy: DP-SGD with noise 0.8 (no round yet), updates combined by median." in facts["privacy_note"]
    append(folder, line(0, sample_privacy={"epsilon": 1.25, "delta": 1e-5}))
    append(folder, line(1, sample_privacy={"epsilon": 2.5, "delta": 1e-5}))
    assert "(ε ≤ 2.5 and δ = 1e-05 for each sample so far)" in hub_facts(hub)["privacy_note"]
    append(folder, line(2, sample_privacy={"epsilon": None, "delta": 1e-5}))
    note = hub_facts(hub)["privacy_note"]
    assert "DP-SGD with noise 0.8 (no ε holds)" in note
    assert "plain: no differential privacy." in note


@pytest.mark.flower
def test_the_version_that_a_site_names_reaches_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import RecordDict

    from tacit import __version__
    from tacit.deploy.site import introduce
    from tacit.engines.flower.messages import node_info_records, read_node_info

    config = places.hub_config(tmp_path, clients=1)
    x, y = places.arrays(6)
    path = places.site_with_arrays(tmp_path, "north", x=x, y=y)
    said = introduce(places.run_info(config), places.trial(path))
    assert read_node_info(RecordDict(node_info_records(said))).version == __version__
