"""`tacit site check`: what would leave a site, read from the messages of a dry run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.data.sources import load_part
from tacit.deploy.check import Report, check
from tacit.deploy.dry_run import MessageContent, dry_run
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientTask
from tacit.errors import TacitError
from tacit.runs import registry
from tacit.runs.build import build_job
from tests import test_contract as contract
from tests.deploy import places
from tests.refusals import refused
from tests.toys import outcomes


def checked(folder: Path, **options: Any) -> Report:
    """The report of a site with twenty samples, every third without a label."""
    x, y = places.arrays(20)
    y[::3] = -1
    path = places.site_with_arrays(folder, "a", x=x, y=y)
    return check(places.write_federation_file(path, places.hub_config(folder, **options)))


def names(message: MessageContent | None) -> list[str]:
    return [] if message is None else [item.name for item in message.items]


def test_fedavg_sends_a_model_and_a_number(tmp_path: Path) -> None:
    report = checked(tmp_path, method="fedavg+fixmatch", labels="client")
    (each,) = report.rounds
    assert (names(each.up), names(each.down), each.number, each.memory) == (["w", "n"], ["w"], 1, None)
    assert each.up is not None
    assert each.up.items[0].form == "the model: 10 tensors, float32"
    assert each.up.about == ("A local model w_k and the number n_k of samples it was trained on.",)
    assert "steps" in each.metrics
    assert (report.samples, report.labeled, report.hidden, report.test) == (20, 13, 0, 0)
    assert report.classes == {"0": 0, "1": 7, "2": 6}
    assert report.sample_like_items == []


def test_sizes_are_those_of_a_real_round(tmp_path: Path) -> None:
    (each,) = checked(tmp_path, method="fedavg+fixmatch", labels="client").rounds
    x, y = places.arrays(60)
    np.savez(tmp_path / "hub.npz", x=x, y=y)
    job = build_job(places.hub_config(tmp_path, method="fedavg+fixmatch", partition="iid", labels="all"))[0]
    state = job.method.start(job.server(0, {}))
    _, downs = job.method.send(job.server(0, {}), state)
    transport = InProcessTransport(job, strict=True)
    outcome: Any = outcomes(transport.run(0, {0: ClientTask(downs[0], None)}))[0]
    assert each.up is not None
    assert each.down is not None
    assert each.down.size == outcome.bytes_down
    assert each.up.size == outcome.bytes_up + len(str(13)) - len(str(len(job.federation.client(0, 0))))


def test_fedmix_sends_means_first_and_then_models(tmp_path: Path) -> None:
    report = checked(tmp_path, method="fedmix", labels="client")
    first, second, third = report.rounds
    assert names(first.up) == ["means/x", "means/y", "means/of"]
    assert (names(second.up), names(third.up)) == (["trained/w", "trained/n"], ["trained/w", "trained/n"])
    assert (names(second.down), names(third.down)) == (["w", "pool/x", "pool/y", "pool/of"], ["w"])
    assert (report.sample_like_items, report.sample_copies) == (["means/x"], [])


def test_samples_that_leave_unchanged_are_found(tmp_path: Path) -> None:
    report = checked(tmp_path, method="fedmix", labels="client", **{"method.group": 1, "method.force": True})
    assert report.sample_copies == ["means/x"]


def test_fedmatch_sends_changes_and_gets_helpers(tmp_path: Path) -> None:
    report = checked(tmp_path, method="fedmatch", labels="client")
    assert [names(each.up) for each in report.rounds] == [["sigma", "psi"]] * 3
    assert "helpers/0" in names(report.rounds[1].down)
    assert "helpers/0" not in names(report.rounds[0].down)
    hidden = checked(tmp_path, method="fedmatch", labels="server")
    assert [names(each.up) for each in hidden.rounds] == [["psi"]] * 3  # no σ from a site without labels
    assert (hidden.labeled, hidden.hidden) == (0, 13)


@pytest.mark.parametrize("name", [name for name in registry.methods() if not contract.method(name).needs.simulation])
def test_every_method_has_a_dry_run(name: str, tmp_path: Path) -> None:
    from_labels = name in ("fed3r", "fedcof", "fedncm")  # their clients send sums over labeled samples, or nothing
    place = "server" if "server" in contract.supported(name) and not from_labels else "client"
    composed = name if registry.method_kinds(name)[1] is None else f"{name}+fixmatch"
    config = places.hub_config(tmp_path, method=composed, labels=place, validation=3)
    rounds = dry_run(config, places.federation_spec(config), None)
    assert rounds[0].number == 1
    assert all(item.form for each in rounds for message in (each.up, each.down) if message for item in message.items)
    sends = name not in ("local-only", "logreg", "server-only")
    assert any(each.up for each in rounds) == sends


def test_the_dry_run_leaves_no_files_behind(tmp_path: Path) -> None:
    checked(tmp_path, method="scaffold", labels="client")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["federation.toml", "own.npz", "site.toml"]
    path = places.write_federation_file(places.site(tmp_path, "b", data="scans"), places.hub_config(tmp_path))
    places.image_folder(path.parent / "scans", {"unlabeled": 5})
    check(path)
    assert sorted(each.name for each in path.parent.iterdir()) == ["federation.toml", "scans", "site.toml"]


@pytest.mark.parametrize(
    "function, place",
    [
        ("client_update", "round 1 of the dry run"),
        ("start", "start of FedAvg"),
        ("merge", "merge of FedAvg"),
    ],
)
def test_a_method_that_fails_is_named_in_one_sentence(
    function: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("it rains")

    monkeypatch.setattr(registry.methods()["fedavg"].kind, function, fails)
    with pytest.raises(TacitError) as caught:
        checked(tmp_path, method="fedavg+fixmatch", labels="client")
    assert place in caught.value.problem
    assert "OSError: it rains" in caught.value.problem
    assert (caught.value.code == "site.dry-run-failed") == (function == "client_update")


def test_rare_metrics_and_lost_messages_are_shown_too(tmp_path: Path) -> None:
    faults = {f"faults.{name}": 1.0 for name in ("lost", "crash", "nonfinite")}
    settings = faults | {"log.local": True, "log.evaluate_every": 50, "engine.min_clients": 3, "rounds": 99}
    x, y = places.arrays(20)
    path = places.site_with_arrays(tmp_path, "a", x=x, y=y, x_test=x, y_test=y)
    report = check(
        places.write_federation_file(path, places.hub_config(tmp_path, method="scaffold", labels="client", **settings))
    )
    assert all(each.up for each in report.rounds)
    assert "local_accuracy" in report.rounds[0].metrics


def test_data_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    x, y = places.arrays(6)
    path = places.site_with_arrays(tmp_path, "a", x=x[:, :, 2:], y=y)
    places.write_federation_file(path, places.hub_config(tmp_path, labels="client"))
    with refused("site.wrong-shape") as caught:
        check(path)
    assert "16×14 grey and the federation's 16×16 grey" in caught.error.problem


@pytest.mark.parametrize("method, expected", [("fedmix", "means/x"), ("fedmatch", "helpers/1")])
def test_the_report_fits_80_columns(
    method: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(tmp_path, method=method, labels="client")
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["site", "check", str(tmp_path / "a")])
    assert shown.exit_code == 0
    assert expected in shown.stdout
    for title in ("Leaves in round 1", "Arrives in round 1", "Also leaves", "Never leaves"):
        assert title in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_a_site_sees_what_a_run_will_have_spent_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hides = {"protect.client_noise": 1.0, "protect.client_clip": 1.0, "net.norm": "group", "rounds": 50}
    report = checked(tmp_path, method="fedavg+fixmatch", labels="client", **hides)
    spent, few = report.protection
    assert "after 50 rounds" in spent
    assert "3 hospitals" in few
    assert all(each.metrics == () for each in report.rounds), "the site logs nothing"
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["site", "check", str(tmp_path / "a")]).stdout
    assert "Privacy of this site at the end of the run" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert checked(tmp_path / "other", method="fedavg+fixmatch", labels="client").protection == []


def test_classes_are_counted_in_the_federations_order(tmp_path: Path) -> None:
    folder = places.image_folder(tmp_path / "scans", {"labeled/yak": 2, "labeled/cat": 1, "unlabeled": 3})
    source = load_part(folder, ("yak", "dog", "cat"))
    assert sorted(source.y.tolist()) == [-1, -1, -1, 0, 0, 2]
