"""Rows of a table through whole runs: every method, sites, and what `tacit data` and `tacit run` print."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.data.duplicates import count_copies
from tacit.deploy.check import check
from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs import registry
from tacit.runs.build import build_data, build_job
from tests.data.tables import cancer, cancer_csv, cancer_npz, write_csv
from tests.deploy import places
from tests.refusals import refused
from tests.toys import play_all

NAMES = list(registry.methods())
SMALL: dict[str, Any] = {"net": "mlp", "clients": 4, "rounds": 2, "batch": 16, "lr": 0.05}


def named(name: str) -> str:
    return name if registry.method_kinds(name)[1] is None else f"{name}+fixmatch"


@pytest.mark.parametrize("name", NAMES)
def test_every_method_learns_from_vectors(name: str, tmp_path: Path) -> None:
    needs = registry.build_method(named(name), {}, {}).needs
    place = {"labels": "client", "per_class": 10} if needs.client_labels else {"labels": "server", "n_labels": 10}
    place |= {"validation": 40} if needs.validation else {}
    data = {"data": str(cancer_npz(tmp_path / "cells.npz"))}
    job, _ = build_job(configs.from_options(SMALL | data | place | {"method": named(name)}))
    record = play_all(job).records[-1]
    accuracy = record.local_accuracy if record.accuracy is None else record.accuracy
    assert accuracy is not None
    assert record.skipped == {}
    assert accuracy > 0.5 if name in NAMES_THAT_START_SLOWLY else accuracy > 0.7  # the larger class is 63 %


def test_the_network_follows_from_the_data_unless_it_is_given(tmp_path: Path) -> None:
    table, array = cancer_csv(tmp_path / "cells.csv"), cancer_npz(tmp_path / "cells.npz")
    pictures = tmp_path / "pictures.npz"
    np.savez(pictures, x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4))

    def net_of(data: object, **options: Any) -> str:
        return configs.from_options({"method": "fedavg", "data": str(data), **options}).net.name

    assert [net_of(data) for data in (table, array, pictures, "shakespeare", "mnist")] == [
        "mlp", "mlp", "lenet", "lstm", "lenet",
    ]  # fmt: skip
    assert net_of(table, net="linear") == "linear"
    assert net_of(table, net={"name": "lenet"}) == "lenet"
    assert configs.make(configs.from_options({"data": str(table)}).tree()).net.name == "mlp"


NAMES_THAT_START_SLOWLY = {"easgd", "overlap-sgd"}


def test_ten_labels_and_unlabeled_rows_beat_chance(tmp_path: Path) -> None:
    options = {"data": str(cancer_csv(tmp_path / "cells.csv")), "labels": "server", "n_labels": 10, "rounds": 5}
    for method, net in (
        ("fedavg+fixmatch", "mlp"),
        ("fedavg+fixmatch", "linear"),
        ("semifl", "mlp"),
        ("fedmatch", "mlp"),
    ):
        job, _ = build_job(configs.from_options(SMALL | options | {"method": method, "net": net}))
        assert (play_all(job).records[-1].accuracy or 0) > 0.85


def test_a_network_for_images_and_features_of_a_linear_one_are_refused(tmp_path: Path) -> None:
    options = {"data": str(cancer_npz(tmp_path / "cells.npz")), "labels": "all"}
    with refused("nets.wrong-inputs") as caught:
        build_job(configs.from_options(SMALL | options | {"net": "lenet"}))
    assert caught.error.remedy == "use --net mlp"
    with refused("method.needs-features") as lacking:
        build_job(configs.from_options(SMALL | options | {"net": "linear", "method": "moon"}))
    assert lacking.error.remedy == "use --net mlp"


def grouped(folder: Path) -> str:
    """Two hundred rows of forty patients, each patient of one class."""
    rows = [[n, n % 11, n // 5, "ab"[n // 5 % 2]] for n in range(200)]
    return str(write_csv(folder / "patients.csv", ["number", "rest", "group", "label"], rows))


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "by-writer"])
def test_a_group_is_on_one_side_of_every_split(partition: str, tmp_path: Path) -> None:
    options = {"data": grouped(tmp_path), "labels": "all", "clients": 3, "validation": 12, "partition": partition}
    source, split = build_data(configs.from_options(options))
    patients = source.x[:, 0].numpy() // 5
    sides = [set(patients[part]) for part in (*split.clients, split.validation)]
    sides.append(set(source.x_test[:, 0].numpy() // 5))
    assert sum(map(len, sides)) == len(set.union(*sides)) == 40
    assert len(split.validation) >= 12
    assert all(sides)


def test_partitions_that_divide_groups_are_refused(tmp_path: Path) -> None:
    options = {"data": grouped(tmp_path), "clients": 3, "labels": "client", "per_class": 2}
    with refused("data.partition-divides-groups"):
        build_data(configs.from_options(options | {"partition": "fedsiam-2"}))
    with refused("data.too-few-groups"):
        build_data(configs.from_options({"data": grouped(tmp_path), "clients": 50, "labels": "all"}))


def hub(folder: Path) -> configs.Config:
    cancer_csv(folder / "hub.csv", slice(0, 200))
    options = {"data": str(folder / "hub.csv"), "partition": "sites", "clients": 3, "labels": "client"}
    return configs.from_options(SMALL | options | {"method": "fedavg+fixmatch"})


def test_a_site_brings_a_table_with_columns_in_any_order(tmp_path: Path) -> None:
    config = hub(tmp_path)
    path = places.write_federation_file(places.site(tmp_path, "a", data="own.csv"), config)
    x, labels, names = cancer()
    rows = [[label if n % 2 else "", *row[::-1].tolist()] for n, (row, label) in enumerate(zip(x, labels, strict=True))]
    write_csv(path.parent / "own.csv", ["label", *names[::-1]], rows[200:300])
    report = check(path)
    assert (report.samples, report.labeled, report.test) == (100, 50, 0)
    assert report.rounds[0].up is not None
    assert report.sample_copies == []
    shown = CliRunner().invoke(app, ["site", "check", str(path)]).output
    assert "100 samples: 50 with a label" in shown


@pytest.mark.parametrize(
    "change, code",
    [
        (lambda x, names: (x[:, :29], names[:29]), "site.other-columns"),
        (lambda x, names: (x, [*names[:29], "shoe size"]), "site.other-columns"),
        (lambda x, names: (np.where(x == x[3, 3], np.inf, x), names), "data.infinite-value"),
        (lambda x, names: (np.where(x == x[3, 3], np.nan, x), names), "data.missing-value"),
        (lambda x, names: (x.astype(str), names), None),
    ],
)
def test_a_table_that_does_not_fit_the_hubs_is_refused(change: Any, code: str | None, tmp_path: Path) -> None:
    path = places.write_federation_file(places.site(tmp_path, "a", data="own.csv"), hub(tmp_path))
    x, labels, names = cancer()
    x, names = change(x[200:240], names)
    rows = [[*row.tolist(), label] for row, label in zip(x, labels[200:240], strict=True)]
    write_csv(path.parent / "own.csv", [*names, "label"], rows)
    if code is None:
        assert check(path).samples == 40
        return
    with pytest.raises(TacitError) as caught:
        check(path)
    assert caught.value.code == code
    if code == "site.other-columns":
        assert "shoe size" not in str(caught.value)


def test_images_at_a_site_are_refused_where_the_hub_has_a_table(tmp_path: Path) -> None:
    x, _ = places.arrays(10)
    path = places.site_with_arrays(tmp_path, "a", x=x, y=np.array(["benign"] * 10))
    with refused("site.other-kind"):
        check(places.write_federation_file(path, hub(tmp_path)))


def test_copies_of_training_rows_among_the_test_rows_are_counted(tmp_path: Path) -> None:
    x, labels, names = cancer()
    rows = [[*row.tolist(), label, "train"] for row, label in zip(x[:100], labels, strict=False)]
    rows += [[*rows[n][:-1], "test"] for n in (3, 5, 5)]
    rows += [[*x[n].tolist(), labels[n], "test"] for n in range(100, 120)]
    path = str(write_csv(tmp_path / "a.csv", [*names, "label", "split"], rows))
    options = ["--data", path, "--labels", "all", "--clients", "2"]
    sentence = "3 of 23 test samples are exact copies of training samples"
    shown = CliRunner().invoke(app, ["data", *options, "--out", str(tmp_path / "figures")]).output
    assert sentence in " ".join(shown.split())
    assert "123 rows of 30 features (100 for training, 23 for testing), 2 classes." in " ".join(shown.split())
    assert "mean radius" in shown
    assert [each.name for each in (tmp_path / "figures").iterdir()] == ["partition.png"]
    run = [*options, "--net", "mlp", "--method", "fedavg", "--rounds", "1", "--set", "engine.workers=0"]
    ran = CliRunner().invoke(app, ["run", *run, "--out", str(tmp_path / "run")]).output
    assert ran.count(sentence) == 1
    quiet = CliRunner().invoke(app, ["run", *run, "--json", "--out", str(tmp_path / "json")]).output
    assert sentence not in quiet


def test_data_without_copies_is_not_warned_about() -> None:
    job, _ = build_job(configs.from_options({"data": "fashion-small", "labels": "all", "clients": 2}))
    assert count_copies(job.federation.pool.x, job.federation.test.x) == 0
    assert count_copies(job.federation.pool.x, job.federation.pool.x[:7]) == 7
