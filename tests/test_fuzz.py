"""Thousands of damaged files and hostile messages: one sentence or a result, never a traceback or other bits."""

import io
import json
import random
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from PIL import Image

import tacit
from tacit import nets
from tacit.data import sources
from tacit.engines.job import ClientFailure, ClientResult
from tacit.engines.memory import MemoryStore
from tacit.engines.reply import ReplyHeader
from tacit.engines.uploads import check_upload
from tacit.engines.wire import Encoded
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.report import charts, history, page, partition_plots, tables
from tacit.report.splits import distinct
from tacit.runs import config as configs
from tacit.runs.directory import RunDirectory
from tacit.runs.experiment import Experiment
from tacit.runs.followers.progress import say, skipped_lines
from tests.engines import farm
from tests.mutations import damaged, damaged_json
from tests.refusals import refused
from tests.report.runs import record, spread, write_run
from tests.test_contract import build_job, supported

CONTROL = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))]


def sentence(error: TacitError) -> str:
    """The error as one sentence, which must not be several lines."""
    text = str(error)
    assert text
    assert "Traceback" not in text
    return text


@contextmanager
def refused_or_fine() -> Iterator[None]:
    """Only a TacitError may leave the block."""
    try:
        yield
    except TacitError as error:
        sentence(error)


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedmatch", "fedmix"])
def test_damaged_uploads_are_results_or_failures(name: str) -> None:
    job = build_job(name, supported(name)[0])
    _, downs = job.method.send(job.server(0, {}), job.method.start(job.server(0, {})))
    replies = [job.method.client_update(job.client(0, client), None, down) for client, down in downs.items()]
    ups = [job.codec.encode(reply.up) for reply in replies if reply.up is not None]
    draw, counts = random.Random(name), {"fine": 0, "left out": 0}
    for number in range(250):
        data = damaged(ups[number % len(ups)], draw)
        result = ClientResult(Encoded(data, job.codec, job.device), None, {}, 0, len(data), held=1000)
        checked = check_upload(job.upload_form, result, keep_decoded=True)
        counts["left out" if isinstance(checked, ClientFailure) else "fine"] += 1
        if isinstance(checked, ClientFailure):
            assert checked.reason.isprintable()
            assert len(checked.reason) < 700
    assert counts["left out"] > 100


def test_damaged_headers_are_read_or_refused() -> None:
    fine = ReplyHeader(True, True, {"steps": 3.0, "loss": 0.5}).to_json()
    failed = json.dumps({"failure": {"code": "client.failed", "reason": "why", "detail": "Traceback"}})
    draw = random.Random(1)
    for number in range(400):
        try:
            header = ReplyHeader.from_json(damaged_json((fine, failed)[number % 2], draw))
        except ValueError:
            continue
        if header.failure:
            assert header.failure.reason.isprintable()
            assert not any(letter in header.failure.detail for letter in CONTROL)
        assert all(isinstance(value, float) for value in header.metrics.values())


def test_damaged_memories_at_a_site_are_refused(tmp_path: Path) -> None:
    store, memory, draw = MemoryStore(tmp_path), bytes(range(200)), random.Random(2)
    version = store.save(3, memory)
    data = (tmp_path / "3").read_bytes()
    for _ in range(100):
        changed = damaged(data, draw)
        (tmp_path / "3").write_bytes(changed)
        with refused_or_fine():
            assert store.load(version) == memory  # unless it is refused, it is the same
            assert changed == data


# --- runs -------------------------------------------------------------------------------------------------------------


def reported(folder: Path) -> str:
    """Everything that a report says, without the drawings."""
    runs = history.disambiguate(history.load_all(folder))
    rows = tables.summarise(history.evaluated(runs))
    lines = [chart.alt_text + chart.x_label for chart in charts.every(history.evaluated(runs))]
    lines += [column.cell(row) for row in rows for column in tables.columns(rows)]
    lines += [partition.title + partition.alt_text for partition in distinct(runs)]
    lines += [line for run in runs for each in run.rounds for line in skipped_lines(each)]
    return "\n".join(lines)


def a_report(folder: Path) -> Path:
    """A run as a report reads it, with everything it may hold."""
    metrics = {"pseudo_kept": spread(0.5), "local_accuracy": spread(0.4), "loss_unlabeled": spread(2.0)}
    more = {"metrics": metrics, "server": {"steps": 3.0, "s2c": 0.5}, "skipped": {"1": "upload lost"}}
    lines = [record(round, 0.1 * round, **more, samples={"0": 20}) for round in range(4)]
    data = {"name": "fashion-small", "partition": "dirichlet:0.3", "labels": "client", "per_class": 5, "clients": 2}
    write_run(folder, lines, data=data)
    counts = {"classes": ["a", "b"], "labeled": [[1, 2, 0], [0, 3, 0]], "unlabeled": [[5, 5, 0], [2, 9, 1]]}
    about = {"hash": "x", "counts": counts | {"server": [1, 1], "heterogeneity": 0.25}}
    (folder / "split.json").write_text(json.dumps(about))
    (folder / "run.json").write_text(json.dumps({"schema": 2, "tacit": "0.1.0", "outcome": "a", "settings": "b"}))
    return folder


def damage_report(folder: Path, draw: random.Random) -> None:
    name = draw.choice(["rounds.jsonl", "rounds.jsonl", "rounds.jsonl", "split.json", "run.json", "config.toml"])
    path = folder / name
    if name == "rounds.jsonl":
        lines = path.read_text().splitlines()
        at = draw.randrange(len(lines))
        lines[at] = damaged_json(lines[at], draw)
        path.write_text("\n".join(lines) + "\n", errors="surrogatepass")
    elif name == "config.toml":
        path.write_text(damaged_toml(path.read_text(), draw), errors="replace")
    else:
        path.write_text(damaged_json(path.read_text(), draw), errors="surrogatepass")


def damaged_toml(text: str, draw: random.Random) -> str:
    """A config in which a value is another; sometimes no TOML any more."""
    if draw.random() < 0.3:
        return damaged(text.encode(), draw).decode(errors="replace")
    tree = json.loads(damaged_json(json.dumps(tomllib.loads(text)), draw).replace("\ufffd", "?"))
    try:
        return tomli_w.dumps(tree)
    except (TypeError, AttributeError, ValueError):
        return damaged(text.encode(), draw).decode(errors="replace")


def test_damaged_runs_are_reported_or_refused(tmp_path: Path) -> None:
    good, draw = a_report(tmp_path / "good"), random.Random(3)
    for number in range(350):
        folder = tmp_path / "bad"
        shutil.copytree(good, folder)
        with suppress(json.JSONDecodeError):  # the damage to a config may leave no JSON to make TOML from
            damage_report(folder, draw)
        with refused_or_fine():
            text = reported(folder) if number % 40 else page.page(history.load_all(folder))
            assert not any(letter in text for letter in CONTROL), f"input {number}"
        shutil.rmtree(folder)


def test_pages_of_damaged_runs_hold_no_control_characters(tmp_path: Path) -> None:
    """A few drawn in full, with what others can write in every place that shows text."""
    hostile = "\x1b[2J<script>alert(1)</script>\u202e"
    lines = [record(0, 0.5, skipped={"1": hostile}, metrics={hostile: spread(0.5)})]
    folder = write_run(tmp_path / "bad", lines, method={"name": f"fedavg{hostile}"}, data={"name": hostile})
    text = page.page(history.load_all(folder), hostile)
    assert not any(letter in text for letter in (*CONTROL, "\u202e"))
    assert "<script>alert" not in text


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    data = folder / "images.npz"
    if not data.exists():
        farm.write_images(data)
    values = {"method": "scaffold", "data": str(data), "clients": 3, "rounds": 3, "workers": 0, "net": "linear"}
    return values | {"labels": "client", "per_class": 1, "train.steps": 1} | changes


def test_resume_of_a_damaged_run_gives_the_same_bits_or_is_refused(tmp_path: Path) -> None:
    """Every file of a run that stopped after two of three rounds."""
    tacit.run(out=tmp_path / "alone", **small(tmp_path))
    rounds = Experiment.create(configs.from_options(small(tmp_path)), tmp_path / "half").rounds()
    for _ in range(2):
        next(rounds)
    rounds.close()
    right = (tmp_path / "alone/model.safetensors").read_bytes()
    names = sorted(
        str(path.relative_to(tmp_path / "half")) for path in (tmp_path / "half").rglob("*") if path.is_file()
    )
    draw, counts = random.Random(4), {"refused": 0, "healed": 0}
    for number in range(110):
        folder = tmp_path / "bad"
        shutil.copytree(tmp_path / "half", folder)
        path = folder / names[number % len(names)]
        if draw.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(damaged(path.read_bytes(), draw))
        try:
            tacit.resume(folder)
            assert (folder / "model.safetensors").read_bytes() == right, (number, path.name)
            counts["healed"] += 1
        except TacitError as error:
            sentence(error)
            counts["refused"] += 1
        shutil.rmtree(folder)
    assert counts["refused"] > 50


# --- configs and data -------------------------------------------------------------------------------------------------


def test_damaged_configs_are_made_or_refused() -> None:
    base = configs.dumps(configs.make({"method": {"name": "fedavg+fixmatch"}, "net": {"width": 2.0}}))
    draw = random.Random(5)
    for _ in range(400):
        try:
            text = damaged_toml(base, draw)
            tree = tomllib.loads(text)
        except (ValueError, RecursionError):
            continue
        with refused_or_fine():
            configs.make(tree)


def load_all(path: Path) -> None:
    source = sources.load(str(path), None, None)
    assert torch.isfinite(source.x.float()).all()


def test_damaged_arrays_are_read_or_refused(tmp_path: Path) -> None:
    draw, path = random.Random(6), tmp_path / "data.npz"
    for number in range(200):
        save = np.savez if number % 2 else np.savez_compressed
        save(path, x=np.arange(12 * 64, dtype=np.uint8).reshape(12, 8, 8), y=np.arange(12) % 3)
        path.write_bytes(damaged(path.read_bytes(), draw))
        with refused_or_fine():
            load_all(path)


SHAPES: list[Callable[[random.Random], dict[str, Any]]] = [
    lambda draw: {
        "x": np.zeros((draw.choice([0, 1, 3]), draw.choice([0, 1, 4096]), 1), np.uint8),
        "y": np.zeros(3, int),
    },
    lambda draw: {"x": np.full((6, 4), draw.choice([np.nan, np.inf, 1e308, -1.0])), "y": np.arange(6) % 2},
    lambda draw: {"x": np.zeros((6, 8, 8), draw.choice(["S3", "O", "c8", "i8", "f2"])), "y": np.arange(6) % 2},
    lambda draw: {"x": np.zeros((6, 8, 8), np.uint8), "y": np.array(draw.choice([["a"] * 6, [2**62] * 6, [1.5] * 6]))},
    lambda draw: {"x": np.zeros((6, 8, 8), np.uint8), "y": np.arange(6) % 2, "group": np.array(["\x1b"] * 6)},
    lambda draw: {"x": np.zeros((6, 3)), "y": np.arange(6) % 2, "features": np.array(["\x1b[2J", "", "x"])},
]


def test_arrays_of_odd_shapes_and_types_are_read_or_refused(tmp_path: Path) -> None:
    draw, path = random.Random(7), tmp_path / "data.npz"
    for number in range(60):
        np.savez(path, **SHAPES[number % len(SHAPES)](draw))
        with refused_or_fine():
            load_all(path)


def test_damaged_tables_of_images_are_read_or_refused(tmp_path: Path) -> None:
    draw, table = random.Random(8), tmp_path / "data.csv"
    for k in range(6):
        Image.fromarray(np.full((8, 8), 40 * k, np.uint8)).save(tmp_path / f"{k}.png")
    lines = ["path,label", *(f"{k}.png,{'ab'[k % 2]}" for k in range(6))]
    good = "\n".join(lines * 2).encode()
    for _ in range(120):
        table.write_bytes(damaged("\n".join(lines).encode() if draw.random() < 0.8 else good, draw))
        with refused_or_fine():
            load_all(table)


def test_damaged_images_are_read_or_refused(tmp_path: Path) -> None:
    draw = random.Random(9)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(3):
            Image.fromarray(np.full((8, 8), 40 * k, np.uint8)).save(tmp_path / name / f"{k}.png")
    path = tmp_path / "a/1.png"
    good = path.read_bytes()
    for _ in range(100):
        path.write_bytes(damaged(good, draw))
        with refused_or_fine():
            load_all(tmp_path)


# --- what once took minutes, gigabytes or a traceback -----------------------------------------------------------------


def test_an_array_that_would_fill_the_memory_is_refused_by_its_header(tmp_path: Path) -> None:
    """Ten terabytes of zeros by their header, and as much by what the archive says of itself."""
    path = tmp_path / "bomb.npz"
    shape = (10**10, 32, 32)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x", "y"):
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", header.getvalue() + bytes(1000))
    with refused("data.unreadable-file"):
        load_all(path)
    np.savez_compressed(path, x=np.zeros((200, 64, 64), np.uint8), y=np.arange(200) % 2)
    with pytest.MonkeyPatch.context() as patch, refused("data.too-large"):
        patch.setattr("tacit.data.sources.npz.available_memory", lambda: 1_000_000)
        load_all(path)


def test_tall_images_make_no_tall_figure() -> None:
    picture = partition_plots.sample_grid([("plain", np.zeros((3, 4096, 1, 1), np.float32))] * 4, ["a", "b", "c"])
    assert max(picture.get_size_inches()) < 30


@pytest.mark.parametrize("width", [1e308, 1e6, 3e4])
@pytest.mark.parametrize("net", ["lenet", "resnet9", "cnn"])
def test_a_network_wider_than_any_memory_is_refused(net: str, width: float) -> None:
    with refused("nets.too-wide"):
        nets.build(net, (1, 28, 28), 10, width=width)


def test_text_of_others_is_printable() -> None:
    hostile = "".join(CONTROL) + "\x1b[2J\u202e\u2028\udc80a\tb\nc"
    assert printable(hostile).isprintable()
    assert [letter for letter in printable(hostile, lines=True) if not letter.isprintable()] == ["\t", "\n"]
    assert printable("x" * 900, 500) == "x" * 499 + "…"
    assert printable("Größe 東京 é\u00a0%") == "Größe 東京 é\u00a0%"


def test_the_terminal_and_the_logs_get_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile, directory = "\x1b[2J\x1b]0;owned\x07 round 10/10", RunDirectory(tmp_path)
    say(f"without evil ({hostile})")
    directory.append_progress(f"without evil ({hostile}\nforged)")
    directory.write_errors(0, {"evil": f"Traceback\n{hostile}"})
    shown = capsys.readouterr().out + directory.progress_file.read_text() + directory.errors_file.read_text()
    assert not any(letter in shown for letter in CONTROL)
    assert directory.progress_file.read_text().count("\n") == 1
