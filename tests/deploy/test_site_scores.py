"""Scores of the common model at the sites: one number each, and only if the site's owner allows it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import hub as hubs
from tacit.deploy import journal, local_scores
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Hub
from tacit.deploy.site import SiteSafeguards, introduce, open_workspace
from tacit.deploy.site_watch import site_panel
from tacit.engines.flower import GridClient, client_app
from tacit.report.history import load
from tacit.report.page import page
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tests.deploy import places
from tests.engines.grid import DirectGrid

pytestmark = pytest.mark.flower


def run(folder: Path, sharing: dict[str, bool], **options: Any) -> tuple[Path, DirectGrid]:
    """A run over sites with six training and twelve test images each; those that share scores say so in site.toml."""
    made = HubDirectory.create(folder / "hub", Hub(insecure=True))
    made.settings_file.write_text(tomli_w.dumps({"insecure": True, "join_seconds": 0.05}))
    config = places.hub_config(folder, **{"clients": len(sharing), "labels": "client", "rounds": 1, **options})
    Experiment.create(config, folder / "run")
    x, y = places.arrays(18)
    sites = []
    for name, shares in sharing.items():
        path = places.site_with_arrays(folder, name, x=x[:6], y=y[:6], x_test=x[6:], y_test=y[6:])
        path.write_text(path.read_text() + f"share_scores = {str(shares).lower()}\n")
        sites.append(path)
    grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), [places.trial(site) for site in sites])
    hubs.main(GridClient(grid), {"hub": str(made.path), "run": str(folder / "run"), "config": ""})
    return folder / "run", grid


def evaluations(grid: DirectGrid) -> list[int]:
    return [message.metadata.dst_node_id for message in grid.pushed if message.metadata.message_type == "evaluate"]


def test_only_sites_that_allow_it_are_asked_and_answer(tmp_path: Path) -> None:
    folder, grid = run(tmp_path, {"a": True, "b": False}, **{"log.metrics": "auroc"})
    found = RunDirectory(folder).site_scores()
    assert found.keys() == {"a"}
    assert found["a"].keys() == {"accuracy", "auroc"}
    assert len(evaluations(grid)) == 1
    assert "a: accuracy" in RunDirectory(folder).progress_file.read_text()
    assert found["a"]["accuracy"] == pytest.approx(_accuracy_on_own_samples(folder))
    assert "At the sites" in page([load(folder)])


def _tensor(x: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(x))


def test_by_default_no_score_leaves(tmp_path: Path) -> None:
    folder, grid = run(tmp_path, {"a": False, "b": False})
    assert evaluations(grid) == []
    assert RunDirectory(folder).site_scores() == {}
    assert not (folder / "site_scores.json").exists()


def test_a_hub_that_asks_without_permission_gets_nothing(tmp_path: Path) -> None:
    _, grid = run(tmp_path, {"a": True, "b": False})
    asked = next(message for message in grid.pushed if message.metadata.message_type == "evaluate")
    (other,) = set(grid.contexts) - {asked.metadata.dst_node_id}
    asked.content.config_records["task"]["client"] = 1
    reply = grid.app(asked, grid.contexts[other])
    assert dict(reply.content["scores"]) == {}


def test_the_site_writes_into_its_journal_what_left(tmp_path: Path) -> None:
    run(tmp_path, {"a": True})
    entries = journal.read(tmp_path / "a").entries
    assert entries[-1].fields == ("score accuracy",)


@pytest.mark.parametrize("shares", [True, False])
def test_the_accuracy_of_a_sites_own_model_leaves_only_if_its_owner_shares_scores(tmp_path: Path, shares: bool) -> None:
    """Which scores a hub asks for is not part of the agreement."""
    folder, _ = run(tmp_path, {"a": shares, "b": shares}, **{"log.local": True})
    (record,) = RunDirectory(folder).rounds()
    assert ("local_accuracy" in record.metrics) == shares


def test_a_site_sees_how_good_its_model_is_and_nothing_of_that_leaves(tmp_path: Path) -> None:
    folder, _ = run(tmp_path, {"a": False}, rounds=2)
    memory = tmp_path / "a" / "memory"
    (score,) = local_scores.read(memory).values()
    assert (score.round, score.samples) == (2, 12)
    # The only site's model is the common one.
    assert score.accuracy == pytest.approx(_accuracy_on_own_samples(folder))
    assert (memory / local_scores.FILE).stat().st_mode & 0o777 == 0o600
    (shown,) = site_panel(tmp_path / "a" / "site.toml")()["scores"]
    assert f"accuracy {score.accuracy:.1%} after training here in round 2, on your 12 test samples" in shown
    assert all("local_accuracy" not in record.metrics for record in RunDirectory(folder).rounds())
    assert all("accuracy" not in name for entry in journal.read(tmp_path / "a").entries for name in entry.fields)


def test_a_damaged_file_of_own_scores_is_written_again(tmp_path: Path) -> None:
    for text in ("[1]", "{", '{"run": {"round": 1}}', '{"run": 7}'):
        (tmp_path / local_scores.FILE).write_text(text)
        assert local_scores.read(tmp_path) == {}
    local_scores.note(tmp_path, "run", local_scores.LocalScore(1, 0.5, 4))
    assert local_scores.read(tmp_path) == {"run": local_scores.LocalScore(1, 0.5, 4)}


def _accuracy_on_own_samples(folder: Path) -> float:
    x, y = (part[6:] for part in places.arrays(18))
    experiment = Experiment.reopen(folder)
    answers = experiment.result().net()(experiment.job.federation.views.plain(_tensor(x))).argmax(1).numpy()
    return float((answers == y).mean())


def test_counts_of_right_labels_leave_only_sites_that_allow_it(tmp_path: Path) -> None:
    folder, _ = run(tmp_path, {"a": True, "b": False}, **{"data.hold_out": 0.34, "log.select": "best", "rounds": 2})
    last = RunDirectory(folder).rounds()[-1]
    assert last.validation is not None
    assert last.validation["samples"] == 2  # a third of the six labels of one site
    assert last.selected is not None
    assert "best on validation" in last.selected["why"]
    fields = [entry.fields for name in "ab" for entry in journal.read(tmp_path / name).entries]
    assert any("right" in each for each in fields)


def test_a_run_in_which_no_site_counts_says_so(tmp_path: Path) -> None:
    folder, _ = run(tmp_path, {"a": False, "b": False}, **{"data.hold_out": 0.34, "log.select": "best"})
    last = RunDirectory(folder).rounds()[-1]
    assert last.validation is None
    assert last.selected is not None
    assert last.selected["why"] == "no client returned counts of right labels"


def test_the_guard_is_off_where_only_sites_have_labels(tmp_path: Path) -> None:
    folder, _ = run(tmp_path, {"a": True, "b": True}, **{"data.hold_out": 0.34, "log.select": "guard"})
    last = RunDirectory(folder).rounds()[-1]
    assert last.selected is not None
    assert last.selected["why"].startswith("the guard was off: labels only would need rounds of its own")
