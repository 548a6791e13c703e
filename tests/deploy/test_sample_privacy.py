"""DP-SGD at sites: noise that the hub cannot repeat, an account in the journal, and a budget that holds."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy import journal
from tacit.deploy.check import check
from tacit.deploy.journal import Entry, Journal
from tacit.protect.sample_budget import Spent, epsilon
from tacit.runs.build import build_job
from tests.deploy import places
from tests.refusals import refused

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy.site import SiteSafeguards, introduce, open_workspace
from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient, client_app
from tests.engines.grid import DirectGrid, played

pytestmark = pytest.mark.flower

NOISY = {"protect.sample_noise": 1.5, "method": "fedavg+supervised", "epochs": 2}


def run(
    folder: Path, name: str = "run", path: Path | None = None, settings: Mapping[str, Any] | None = None
) -> tuple[Path, bytes, list[Any]]:
    """A run in which the site `a` with a share of the data takes part: its folder, the final state, the records."""
    config = places.hub_config(folder, partition="iid", labels="all", clients=1, **NOISY | dict(settings or {}))
    path = places.agree(path or places.site(folder, "a"), config)
    grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), [places.member(path)])
    job = build_job(config)[0]
    transport = FlowerTransport(job, ClientNodes(GridClient(grid), places.run_info(config, name), {"a": 0}))
    state, records, _ = played(job, transport, folder / name)
    return path.parent, state, records


def test_the_journal_accounts_for_every_update(tmp_path: Path) -> None:
    folder, _, records = run(tmp_path)
    found = journal.read(folder)
    # 12 samples in batches of 8: q = 2/3, 2 steps in an epoch, 4 in a round, 12 in all.
    assert sum(each.steps for each in found.spent()) == 12
    expected = epsilon([Spent(1.5, 8 / 12, 12)], 1e-5)
    assert found.privacy()[0] == pytest.approx(expected)
    assert found.privacy()[1] == 1e-5
    assert records[-1].sample_privacy == {"epsilon": pytest.approx(expected), "delta": 1e-5}
    shown = CliRunner().invoke(app, ["site", "journal", str(folder)], env={"COLUMNS": "200"})
    assert f"ε = {expected:.3g}" in shown.output


def test_a_second_run_adds_to_the_account(tmp_path: Path) -> None:
    folder, _, _ = run(tmp_path)
    run(tmp_path, "other")
    assert journal.read(folder).privacy()[0] == pytest.approx(epsilon([Spent(1.5, 8 / 12, 24)], 1e-5))


def test_the_hub_cannot_repeat_the_noise_of_a_site(tmp_path: Path) -> None:
    _, first, _ = run(tmp_path, settings={"rounds": 1})
    _, second, _ = run(tmp_path, "other", settings={"rounds": 1})  # the same seed
    assert first != second


def test_an_update_beyond_the_budget_does_not_leave(tmp_path: Path) -> None:
    after_two = epsilon([Spent(1.5, 8 / 12, 8)], 1e-5)
    path = places.site(tmp_path, "a", max_epsilon=after_two * 1.001)
    folder, _, records = run(tmp_path, path=path, settings={"engine.min_clients": 0})
    assert [record.clients for record in records] == [1, 1, 0]
    assert "site.budget-spent" in records[2].skipped[0] or "budget" in records[2].skipped[0]
    found = journal.read(folder)
    assert [entry.kind for entry in found.entries] == ["introduction", "update", "update", "failure"]
    assert found.privacy()[0] <= after_two * 1.001


def test_a_site_with_a_budget_sends_nothing_without_noise(tmp_path: Path) -> None:
    path = places.site(tmp_path, "a", max_epsilon=1e6)
    options = {"protect.sample_noise": None, "engine.min_clients": 0, "rounds": 1}
    folder, _, records = run(tmp_path, path=path, settings=options)
    assert records[0].clients == 0
    assert journal.read(folder).spent() == []


def test_an_update_without_noise_has_no_epsilon() -> None:
    entry = Entry("2026-01-02T03:04:05+00:00", "update", "run-1", 1, "fedavg", ("w", "n"), 1000)
    assert Journal((entry,)).privacy()[0] == math.inf
    scores = Entry("2026-01-02T03:04:05+00:00", "update", "run-1", 1, "fedavg", ("score auroc",), 10)
    assert Journal((scores,)).privacy()[0] == 0


def site(folder: Path, **settings: Any) -> Path:
    """A site with 20 samples of its own and the federation file of a run with noise."""
    x, y = places.arrays(20)
    path = places.site(folder, "a", data="own.npz", **settings)
    np.savez(path.parent / "own.npz", x=x, y=y)
    return places.write_federation_file(path, places.hub_config(folder, labels="client", **NOISY))


def test_site_check_says_what_all_rounds_reveal(tmp_path: Path) -> None:
    path = site(tmp_path)
    found = check(path).privacy
    assert found is not None
    # 20 labeled samples in batches of 8: 3 steps in an epoch, 2 epochs, 3 rounds.
    assert (found.steps, found.rate) == (18, 0.4)
    assert found.epsilon == found.total == epsilon([Spent(1.5, 0.4, 18)], 1e-5)
    shown = CliRunner().invoke(app, ["site", "check", str(path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"ε = {found.epsilon:.3g}" in shown.output
    assert "sampling_rate" in shown.output
    assert "loss" not in shown.output


def test_site_check_refuses_a_run_beyond_the_budget(tmp_path: Path) -> None:
    with refused("site.budget-too-small"):
        check(site(tmp_path, max_epsilon=0.1)).require_safe()


def test_site_check_refuses_a_method_that_noise_does_not_protect(tmp_path: Path) -> None:
    x, y = places.arrays(20)
    path = places.site_with_arrays(tmp_path, "a", x=x, y=y)
    with refused("protect.method-sees-samples"):
        check(
            places.write_federation_file(
                path, places.hub_config(tmp_path, labels="client", **NOISY | {"method": "moon"})
            )
        )
