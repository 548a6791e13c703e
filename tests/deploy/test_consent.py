"""A site takes part only in what its owner has checked, and lets no single sample leave unless its owner says so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy.check import check
from tacit.engines.job import ClientFailure, ClientTask
from tacit.errors import TacitError
from tacit.runs.build import build_job
from tests.deploy import places
from tests.refusals import refused
from tests.toys import outcomes

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy.site import SiteSafeguards, introduce, open_workspace
from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient, client_app
from tests.engines.grid import DirectGrid, played

pytestmark = pytest.mark.flower

EXPOSING = {"method.group": 1, "method.force": True}


def member(folder: Path, *, samples: int = 20, agreed: bool = True, **options: Any) -> tuple[Path, dict[str, str]]:
    """A site with labeled samples that agreed to a run of FedMix, and what the hub says about that run."""
    x, y = places.arrays(samples)
    path = places.site_with_arrays(folder, "a", x=x, y=y)
    config = places.hub_config(folder, method="fedmix", labels="client", **options)
    (places.agree if agreed else places.write_federation_file)(path, config)
    return path, places.run_info(config)


def test_without_a_passed_check_every_run_is_refused(tmp_path: Path) -> None:
    path, about = member(tmp_path, agreed=False)
    with refused("site.unchecked"):
        open_workspace(about, places.member(path), 0)
    assert CliRunner().invoke(app, ["site", "check", str(path)]).exit_code == 0
    assert (path.parent / "check.json").stat().st_mode & 0o777 == 0o600
    assert not introduce(about, places.member(path)).refusal


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": 2, "digest": "x"}', '{"schema": 1}', "\x00"])
def test_a_broken_record_of_the_check_counts_as_none(content: str, tmp_path: Path) -> None:
    path, about = member(tmp_path)
    (path.parent / "check.json").write_text(content)
    with refused("site.unchecked"):
        open_workspace(about, places.member(path), 0)


def test_a_change_asks_for_another_check(tmp_path: Path) -> None:
    path, about = member(tmp_path)
    federation, settings = path.parent / "federation.toml", path.read_text()
    original = federation.read_text()
    assert not introduce(about, places.member(path)).refusal
    federation.write_text(re.sub("rounds = 3", "rounds = 10000", original))
    assert federation.read_text() != original
    with refused("site.unchecked"):
        open_workspace(about, places.member(path), 0)
    federation.write_text(original)
    path.write_text(settings + "min_group = 1\n")
    with refused("site.unchecked"):
        open_workspace(about, places.member(path), 0)
    path.write_text(settings + 'device = "cpu"\nport = 9999\n')  # neither changes what leaves
    assert not introduce(about, places.member(path)).refusal


def test_a_run_that_shows_samples_fails_the_check_unless_the_site_allows_it(tmp_path: Path) -> None:
    path, _ = member(tmp_path, agreed=False, **EXPOSING)
    shown = CliRunner().invoke(app, ["site", "check", str(path)])
    assert isinstance(shown.exception, TacitError)
    assert "UNCHANGED SAMPLES OF THIS SITE" in shown.stdout
    assert not (path.parent / "check.json").exists()
    with refused("site.group-too-small"):
        check(path).require_safe()
    path.write_text(path.read_text() + "min_group = 1\n")
    check(path).require_safe()


@pytest.mark.parametrize(
    "samples, options, leaves",
    [(20, EXPOSING, False), (20, {"method.group": 4}, False), (9, {}, False), (20, {"method.group": 10}, True)],
)
def test_means_of_few_samples_do_not_leave_even_from_a_site_that_takes_part_in_any_run(
    samples: int, options: dict[str, Any], leaves: bool, tmp_path: Path
) -> None:
    """The hub's config alone never decides, and the sizes are those of the site's own data."""
    alone: dict[str, Any] = {"clients": 1, "rounds": 1, "engine.min_clients": 0, **options}
    path, about = member(tmp_path, samples=samples, agreed=True, **alone)
    config = places.hub_config(tmp_path, method="fedmix", labels="client", **alone)
    grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), [places.trial(path)])
    transport = FlowerTransport(build_job(config)[0], ClientNodes(GridClient(grid), about, {"a": 0}))
    (record,) = played(build_job(config)[0], transport, tmp_path / "run")[1]
    assert (record.clients == 1) == leaves
    line = json.loads((path.parent / "journal.jsonl").read_text().splitlines()[-1])
    assert line["kind"] == ("update" if leaves else "failure")
    assert line["fields"] == (["means"] if leaves else [])


def test_a_round_beyond_the_last_one_is_refused(tmp_path: Path) -> None:
    """Otherwise a hub could ask for more rounds than it had announced."""
    config = places.hub_config(tmp_path, partition="iid", labels="all", clients=1, rounds=2)
    path = places.agree(places.site(tmp_path, "a"), config)
    grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), [places.member(path)])
    job = build_job(config)[0]
    transport = FlowerTransport(job, ClientNodes(GridClient(grid), places.run_info(config), {"a": 0}))
    _, downs = job.method.send(job.server(0, {}), job.method.start(job.server(0, {})))
    found: list[Any] = [outcomes(transport.run(round, {0: ClientTask(downs[0], None)}))[0] for round in (0, 1, 2)]
    assert [isinstance(outcome, ClientFailure) for outcome in found] == [False, False, True]
    assert "client.no-such-round" in found[2].reason
