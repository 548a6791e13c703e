"""Scores of a round beyond accuracy and loss: the same bits on every transport, and none unless asked for."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.engines.client import evaluate_all
from tacit.engines.in_process import InProcessTransport
from tacit.engines.record import RoundRecord
from tacit.engines.scores import named_scores, predictions
from tacit.engines.workers import WorkerTransport
from tacit.federation import Samples
from tacit.methods.fedavg import FedAvg
from tacit.metrics.scores import NAMES, scores
from tacit.objectives import Supervised
from tacit.runs.config import from_options
from tacit.runs.directory import RunDirectory
from tests.engines import farm
from tests.refusals import refused


def many_tests() -> Any:
    """A job whose test set has three parts."""
    federation = farm.federation()
    x, y = farm.images(1234)
    return farm.job(FedAvg(Supervised()), federation=replace(federation, test=Samples(x, y)), metrics=NAMES)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_outputs_are_the_same_bits_for_any_number_of_workers(workers: int) -> None:
    job = many_tests()
    model = job.net.init(torch.Generator().manual_seed(0))
    alone = InProcessTransport(job).evaluate(model, outputs=True)
    with closing(WorkerTransport(job, workers)) as transport:
        together, plain = transport.evaluate(model, outputs=True), transport.evaluate(model)
    assert together == alone == plain
    assert plain.outputs == ()
    assert torch.equal(torch.cat(together.outputs), torch.cat(alone.outputs))
    assert named_scores(job, together) == named_scores(job, alone)


def test_scores_of_a_round_are_those_of_its_outputs() -> None:
    job = many_tests()
    score = evaluate_all(job, job.net.init(torch.Generator().manual_seed(0)), outputs=True)
    found, expected = named_scores(job, score), scores(predictions(job, score))
    assert found == {name: value for name, value in expected.items() if np.isfinite(value)}
    assert found["accuracy"] == score.correct / score.count
    assert found["log_loss"] == pytest.approx(score.loss / score.count, rel=1e-5)
    assert named_scores(job, None) == {}


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    images = farm.write_images(folder / "images.npz")
    values = {"data": str(images), "clients": 4, "labels": "client", "per_class": 2, "rounds": 3, "workers": 0}
    return values | {"train.steps": 2, "train.batch": 6, "net": "linear"} | changes


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) | {"seconds": 0} for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_run_logs_the_scores_it_is_asked_for_and_nothing_else_changes(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "plain", **settings(tmp_path))
    asked = {"log.metrics": "balanced_accuracy, auroc"}
    tacit.run(out=tmp_path / "more", **settings(tmp_path, **asked))
    plain, more = records(tmp_path / "plain"), records(tmp_path / "more")
    assert all("scores" not in record for record in plain)
    assert all(record["scores"].keys() == {"balanced_accuracy", "auroc"} for record in more)
    assert [{name: value for name, value in record.items() if name != "scores"} for record in more] == plain
    farm.stop_and_go_on(settings(tmp_path, **asked, workers=2), tmp_path / "resumed")
    assert records(tmp_path / "resumed") == more


def test_an_unknown_score_is_refused(tmp_path: Path) -> None:
    with refused("settings.impossible-value"):
        from_options(settings(tmp_path, **{"log.metrics": "f2"}))


def test_a_run_without_the_setting_keeps_its_fingerprint(tmp_path: Path) -> None:
    assert "metrics" not in from_options(settings(tmp_path)).tree()["log"]


def test_a_record_reads_back_with_and_without_scores() -> None:
    record = RoundRecord(0, 1.0, 0.5, 0.7, None, 1, 1, 1, 1, {}, {}, {}, {}, scores={"auroc": 0.9})
    assert RoundRecord.from_json(record.to_json()) == record
    assert "scores" not in json.loads(RoundRecord(0, 1.0, 0.5, 0.7, None, 1, 1, 1, 1, {}, {}, {}, {}).to_json())


def test_a_finished_run_has_the_outputs_of_its_model(tmp_path: Path) -> None:
    result = tacit.run(out=tmp_path / "run", **settings(tmp_path))
    directory = RunDirectory(tmp_path / "run")
    found = directory.predictions()
    assert found is not None
    assert scores(found, ["accuracy"])["accuracy"] == result.accuracy
    directory.predictions_file.unlink()
    tacit.resume(tmp_path / "run")
    again = directory.predictions()
    assert again is not None
    assert np.array_equal(again.logits, found.logits)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text"])
def test_broken_outputs_are_no_outputs(tmp_path: Path, content: bytes) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.predictions() is None
    directory.predictions_file.write_bytes(content)
    assert directory.predictions() is None


def test_a_method_without_a_common_model_has_no_outputs(tmp_path: Path) -> None:
    tacit.run(out=tmp_path / "run", **settings(tmp_path, method="local-only+supervised"))
    assert not RunDirectory(tmp_path / "run").predictions_file.exists()
