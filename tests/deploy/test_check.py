"""What would leave a site, as its check tells it: read off the messages of a rehearsal, never typed by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit import catalog
from tacit.cli import app
from tacit.data.sources import load_part
from tacit.deploy.check import Report, check
from tacit.deploy.rehearsal import Sent, rehearse
from tacit.engines.inline import InlineCourier
from tacit.engines.loop import Parcel
from tacit.errors import TacitError
from tacit.prepare import build_job
from tests import test_contract as contract
from tests.deploy import places


def checked(folder: Path, **options: Any) -> Report:
    """The check of a site with twenty samples, every third of them without a label."""
    x, y = places.arrays(20)
    y[::3] = -1
    path = places.site_with(folder, "a", x=x, y=y)
    return check(places.tell(path, places.hub(folder, **options)))


def names(sent: Sent | None) -> list[str]:
    return [] if sent is None else [item.name for item in sent.items]


def test_fedavg_sends_a_model_and_a_number(tmp_path: Path) -> None:
    report = checked(tmp_path, method="fedavg+fixmatch", labels="client")
    (each,) = report.rounds
    assert (names(each.up), names(each.down), each.number, each.memory) == (["w", "n"], ["w"], 1, None)
    assert each.up is not None
    assert each.up.items[0].what == "the model: 10 tensors, float32"
    assert each.up.about == ("A local model w_k and the number n_k of samples it was trained on.",)
    assert "steps" in each.metrics
    assert (report.samples, report.labeled, report.hidden, report.test) == (20, 13, 0, 0)
    assert report.classes == {"0": 0, "1": 7, "2": 6}
    assert report.shows_samples == []


def test_sizes_are_those_of_a_real_round(tmp_path: Path) -> None:
    (each,) = checked(tmp_path, method="fedavg+fixmatch", labels="client").rounds
    x, y = places.arrays(60)
    np.savez(tmp_path / "hub.npz", x=x, y=y)
    job = build_job(places.hub(tmp_path, method="fedavg+fixmatch", partition="iid", labels="all"))[0]
    state = job.method.start(job.server(0, {}))
    _, downs = job.method.send(job.server(0, {}), state)
    outcome: Any = InlineCourier(job, strict=True).exchange(0, {0: Parcel(downs[0], None)})[0]
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
    assert (report.shows_samples, report.copies_samples) == (["means/x"], [])


def test_samples_that_leave_as_they_are_are_seen(tmp_path: Path) -> None:
    report = checked(tmp_path, method="fedmix", labels="client", **{"method.group": 1, "method.force": True})
    assert report.copies_samples == ["means/x"]


def test_fedmatch_sends_changes_and_gets_helpers(tmp_path: Path) -> None:
    report = checked(tmp_path, method="fedmatch", labels="client")
    assert [names(each.up) for each in report.rounds] == [["sigma", "psi"]] * 3
    assert "helpers/0" in names(report.rounds[1].down)
    assert "helpers/0" not in names(report.rounds[0].down)
    hidden = checked(tmp_path, method="fedmatch", labels="server")
    assert [names(each.up) for each in hidden.rounds] == [["psi"]] * 3  # no σ from a site without labels
    assert (hidden.labeled, hidden.hidden) == (0, 13)


@pytest.mark.parametrize("name", [name for name in catalog.methods() if not contract.method(name).needs.simulation])
def test_every_method_can_be_rehearsed(name: str, tmp_path: Path) -> None:
    place = "server" if "server" in contract.supported(name) else "client"
    composed = name if catalog.method_kinds(name)[1] is None else f"{name}+fixmatch"
    config = places.hub(tmp_path, method=composed, labels=place, validation=3)
    rounds = rehearse(config, places.describe(config), None)
    assert rounds[0].number == 1
    assert all(item.what for each in rounds for sent in (each.up, each.down) if sent for item in sent.items)
    sends = name not in ("local-only", "server-only")
    assert any(each.up for each in rounds) == sends  # what would leave is not overlooked


def test_the_rehearsal_leaves_nothing_behind(tmp_path: Path) -> None:
    checked(tmp_path, method="scaffold", labels="client")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["federation.toml", "own.npz", "site.toml"]
    path = places.tell(places.site(tmp_path, "b", data="scans"), places.hub(tmp_path))
    places.image_folder(path.parent / "scans", {"unlabeled": 5})
    check(path)
    assert sorted(each.name for each in path.parent.iterdir()) == ["federation.toml", "scans", "site.toml"]


@pytest.mark.parametrize(
    "function, reason",
    [
        ("client_update", "the rehearsal of round 1 failed: OSError: it rains; mend that, or tell the hub"),
        ("start", "start of FedAvg failed in round 1: OSError: it rains; mend it"),
        ("merge", "merge of FedAvg failed in round 1: OSError: it rains; mend it"),
    ],
)
def test_a_method_that_fails_is_one_sentence(
    function: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("it rains")

    monkeypatch.setattr(catalog.methods()["fedavg"], function, fails)
    with pytest.raises(TacitError, match=reason):
        checked(tmp_path, method="fedavg+fixmatch", labels="client")


def test_what_is_told_seldom_or_gets_lost_is_shown_all_the_same(tmp_path: Path) -> None:
    faults = {f"faults.{name}": 1.0 for name in ("lost", "crash", "nonfinite")}
    settings = faults | {"log.local": True, "log.evaluate_every": 50, "engine.min_clients": 3, "rounds": 99}
    x, y = places.arrays(20)
    path = places.site_with(tmp_path, "a", x=x, y=y, x_test=x, y_test=y)
    report = check(places.tell(path, places.hub(tmp_path, method="scaffold", labels="client", **settings)))
    assert all(each.up for each in report.rounds)
    assert "local_accuracy" in report.rounds[0].metrics


def test_data_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    x, y = places.arrays(6)
    path = places.site_with(tmp_path, "a", x=x[:, :, 2:], y=y)
    places.tell(path, places.hub(tmp_path, labels="client"))
    with pytest.raises(TacitError, match="images in own.npz are 16×14 grey and the federation's 16×16 grey"):
        check(path)


@pytest.mark.parametrize("method, expected", [("fedmix", "means/x"), ("fedmatch", "helpers/1")])
def test_the_listing_fits_a_terminal(
    method: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(tmp_path, method=method, labels="client")
    monkeypatch.setenv("COLUMNS", "80")
    said = CliRunner().invoke(app, ["site", "check", str(tmp_path / "a")])
    assert said.exit_code == 0
    assert expected in said.stdout
    for title in ("Leaves in round 1", "Comes in round 1", "Also leaves", "Never leaves"):
        assert title in said.stdout
    assert max(map(len, said.stdout.splitlines())) <= 80


def test_classes_are_counted_in_the_federations_order(tmp_path: Path) -> None:
    folder = places.image_folder(tmp_path / "scans", {"labeled/yak": 2, "labeled/cat": 1, "unlabeled": 3})
    source = load_part(folder, ("yak", "dog", "cat"))
    assert sorted(source.y.tolist()) == [-1, -1, -1, 0, 0, 2]
