"""`tacit run`, `tacit resume` and `tacit report`: what they print and write."""

import json
import sys
import tomllib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from rich.progress import MofNCompleteColumn

import tacit
from tacit.runs import config as configs
from tacit.runs.directory import shown
from tacit.runs.experiment import Experiment
from tacit.runs.followers import progress
from tests.cli.shell import Shell, code_of, fits
from tests.toys import images


def test_run_prints_plain_lines_and_saves_the_run(shell: Shell) -> None:
    said = shell.run("--out", "mine", "--rounds", 3, "--seed", 4)
    assert said.lines[-1] == "next: tacit predict mine FOLDER, tacit evaluate mine, tacit report mine"
    assert said.lines[-2].startswith("accuracy ")
    assert said.lines[-2].endswith("saved in mine")
    assert said.lines[-3].startswith("round 3/3  acc ")
    assert "loss" in said.lines[-3]
    assert fits(said.out)
    assert "\x1b" not in said.out
    assert "\r" not in said.out
    config = tacit.resume(shell.folder / "mine").config
    assert (config.rounds, config.seed, config.train.batch) == (3, 4, 6)


def test_set_overrides_options_and_options_override_the_file(shell: Shell) -> None:
    words = ("--method", "fedprox+fixmatch", "--lr", 0.5, "--set", "method.mu=0.25", "--set", "train.lr=0.125")
    shell.run("--quiet", "--out", "mine", "--batch", 7, "--set=objective.threshold=0.5", *words)
    config = tacit.resume(shell.folder / "mine").config
    assert config.method == {"name": "fedprox+fixmatch", "mu": 0.25}
    assert config.objective == {"threshold": 0.5}
    assert (config.train.batch, config.train.steps) == (7, 1)
    assert config.train.lr == 0.125


def test_a_bound_can_be_run_by_its_name(shell: Shell) -> None:
    said = shell.run("--quiet", "--method", "labels-only")
    assert said.out.endswith("saved in runs/labels-only-images\n")
    assert tacit.resume(shell.folder / "runs/labels-only-images").config.method_name == "labels-only"


def test_another_method_than_that_of_the_file_says_what_it_leaves_out(shell: Shell) -> None:
    with (shell.folder / "images.npz.toml").open("a") as file:
        file.write("[objective]\nlabeler = 'global'\n")
    said = shell.run("--out", "mine", "--method", "fedavg+supervised")
    assert said.lines[0] == "fedavg+supervised: without objective.labeler, which it does not have"


def test_every_option_of_the_command_line_reaches_the_config(shell: Shell) -> None:
    """Each option once, with a value that is not its default."""
    values = {
        "method": "fedavg+supervised",
        "data": str(shell.folder / "images.npz"),
        "labels": "some",
        "n-labels": 30,
        "validation": 6,
        "clients": 5,
        "partition": "shards:2",
        "cohort": 3,
        "net": "lenet",
        "rounds": 1,
        "epochs": 2,
        "batch": 5,
        "lr": 0.125,
        "workers": 0,
        "device": "cpu",
        "engine": "local",
        "seed": 9,
    }
    words = [word for name, value in values.items() for word in (f"--{name}", value)]
    assert shell("run", *words, "--set", "data.some=0.5", "--out", "mine").code == 0
    tree = configs.read(Path("mine/config.toml"))
    for name, value in values.items():
        section, _, key = configs.OPTIONS[name.replace("-", "_")].rpartition(".")
        assert (tree[section] if section else tree)[key] == value


def test_without_out_every_run_gets_a_new_folder(shell: Shell) -> None:
    first, second = shell.run("--quiet"), shell.run("--quiet")
    places = [said.lines[-1].rpartition("saved in ")[2] for said in (first, second)]
    assert places == ["runs/fedavg-images", "runs/fedavg-images-2"]
    assert all((shell.folder / place / "model.safetensors").exists() for place in places)


def test_quiet_prints_only_the_last_line(shell: Shell) -> None:
    said = shell.run("--quiet", "--out", "mine")
    assert len(said.lines) == 1
    assert said.out.startswith("accuracy ")


def strict_json(line: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_json_lines_are_the_records_and_the_result(shell: Shell) -> None:
    said = shell.run("--json", "--out", "mine")
    *records, result = map(strict_json, said.lines)
    assert records == tacit.resume(shell.folder / "mine").history
    assert result == {"accuracy": records[-1]["accuracy"], "folder": "mine"}


def test_json_lines_are_valid_json_even_if_numbers_are_not_finite(shell: Shell) -> None:
    words = ("--method", "local-only+supervised", "--net", "lenet", "--lr", 1e20, "--set", "train.momentum=0")
    *records, _ = map(strict_json, shell.run("--json", "--out", "mine", *words).lines)
    assert records[-1]["metrics"]["loss_supervised"]["mean"] is None
    silent = ("--method", "local-only", "--set", "faults.crash=1.0", "--set", "engine.min_clients=0")
    assert strict_json(shell.run("--json", "--out", "silent", *silent).lines[-1])["accuracy"] is None


NOISY = """
from dataclasses import dataclass

from tests.engines.farm import *


@dataclass(frozen=True)
class Noisy(Tally):
    def client_update(self, client, memory, down):
        if client.client == 2:
            raise ValueError("[/red] and [bold]")
        return super().client_update(client, memory, down)
"""


LEFT_OUT = "round 1: without client 2 (failed: ValueError: [/red] and [bold])"


@pytest.fixture
def noisy(shell: Shell) -> Iterator[str]:
    """A method that fails at one client, with a message that looks like markup."""
    (shell.folder / "noisy.py").write_text(NOISY)
    yield "noisy:Noisy"
    sys.modules.pop("noisy")


def test_clients_that_are_left_out_are_named_with_the_reason(shell: Shell, noisy: str) -> None:
    said = shell.run("--method", noisy, "--out", "mine")
    assert said.lines[0] == LEFT_OUT
    assert "[/red]" in (shell.folder / "mine" / "errors.log").read_text()


def test_a_terminal_shows_a_progress_bar_with_the_same_content(shell: Shell, noisy: str) -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    config = configs.from_options({"method": noisy}, configs.read(Path("images.npz.toml")))
    progress.run(Experiment.create(config, Path("mine")), "auto", console)
    shown = screen.getvalue()
    assert LEFT_OUT in shown
    assert "noisy:Noisy" in shown
    assert "2/2" in shown
    assert "acc " in shown


def test_the_progress_bar_shows_how_many_clients_have_answered(shell: Shell) -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    config = configs.from_options({}, configs.read(Path("images.npz.toml")))
    bar = progress._Bar(MofNCompleteColumn(), console=console, transient=False)
    bar.add_task("fedavg", total=config.rounds)
    lines = []
    for event in Experiment.create(config, Path("mine")).events():
        bar.current.follow(event)
        bar.console.print(*bar.get_renderables())
        lines.append(screen.getvalue().splitlines()[-1].strip())
    assert "round 1/2, 0 of 4 clients answered" in lines
    assert "round 2/2, 3 of 4 clients answered" in lines
    assert "answered" not in lines[-1]


def test_brackets_in_the_name_of_a_folder_are_printed(shell: Shell) -> None:
    assert shell.run("--quiet", "--out", "my [bold] run").out.endswith("saved in my [bold] run\n")


def test_commands_with_long_paths_are_not_wrapped(shell: Shell) -> None:
    place = f"{'long/' * 20}my site"
    said = shell("site", "init", place, "--name", "a", "--insecure")
    assert (said.code, said.err) == (0, "")
    commands = [line.strip() for line in said.lines if line.strip().startswith("tacit ")]
    assert commands == [f"tacit site check '{place}/site.toml'", f"tacit site join HOST:PORT --site '{place}'"]


def test_resume_continues_a_run_and_reports_a_finished_one(shell: Shell) -> None:
    shell.run("--quiet", "--out", "alone")
    config = configs.make(configs.read(Path("alone/config.toml")))
    rounds = Experiment.create(config, Path("mine")).rounds()
    next(rounds)
    rounds.close()
    said = shell("resume", "mine", "--json")
    assert said.code == 0
    assert [strict_json(line).get("round") for line in said.lines] == [1, None]
    done = shell("resume", "mine")
    assert done.lines[:1] == [shell("resume", "alone", "--quiet").lines[0].replace("alone", "mine")]


def test_report_writes_one_page(shell: Shell) -> None:
    shell.run("--quiet", "--out", "one")
    shell.run("--quiet", "--out", "two", "--seed", 1)
    said = shell("report", "one", "two", "--out", "page.html")
    assert (said.code, said.err) == (0, "")
    assert said.lines == ["report: page.html"]
    text = (shell.folder / "page.html").read_text()
    assert "tacit run one/config.toml\ntacit run two/config.toml</code>" in text
    assert "Heat map of 4 clients" in text


def test_the_report_of_a_single_run_is_among_the_files_that_the_live_page_links(shell: Shell) -> None:
    shell.run("--quiet", "--out", "one")
    assert shell("report", "one").lines == ["report: one/report.html"]
    assert "report.html" in [file["name"] for file in shown.listing(shell.folder / "one")]
    assert shell("report", "one", "one").lines == ["report: report.html"]


def test_report_writes_plots_as_files_on_request(shell: Shell) -> None:
    shell.run("--quiet", "--out", "one", "--set", "log.local=true", "--method", "fedavg+fixmatch")
    said = shell("report", "one", "--plots", "figures", "--format", "svg")
    names = [
        "accuracy-rounds",
        "accuracy-bytes",
        "accuracy-steps",
        "accuracy-time",
        "pseudo-kept",
        "clients",
        "partition",
    ]
    assert (said.code, said.err) == (0, "")
    lines = [line for line in said.lines if "pseudo-accuracy" not in line]  # it needs an accepted pseudo-label
    assert lines == [*(f"plot: figures/{name}.svg" for name in names), "report: one/report.html"]
    words = ("report", "one", "--plots", "other", "--format", "gif", "--out", "other.html")
    assert (shell(*words).code, code_of(*words)) == (2, "names.unknown-format")
    assert not (shell.folder / "other").exists()
    assert not (shell.folder / "other.html").exists()


def own_images(folder: Path) -> None:
    """pics/labeled/<class>/…, pics/unlabeled/… of mixed sizes, and list.csv about the same files."""
    data = images(0, 36)
    lines = ["path,label"]
    for row, (pixels, label) in enumerate(zip(data.x[:, 0].numpy(), data.y.tolist(), strict=True)):
        place = Path("pics/labeled") / "abc"[label] if row < 24 else Path("pics/unlabeled")
        (folder / place).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((20 + row % 3, 20)).save(folder / place / f"{row}.png")
        lines.append(f"{place}/{row}.png,{'abc'[label] if row < 24 else ''}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("data", ["pics", "list.csv"])
@pytest.mark.parametrize("where", [("--labels", "all"), ("--labels", "server", "--per-class", "2")], ids=" ".join)
def test_data_and_run_read_image_folders_and_manifests(shell: Shell, data: str, where: tuple[str, ...]) -> None:
    own_images(shell.folder)
    words = ("--data", data, *where, "--clients", "2", "--set", "data.size=16")
    overview = shell("data", *words, "--out", "overview")
    assert overview.code == 0, overview.err
    assert (shell.folder / "overview" / "partition.png").exists()
    said = shell("run", *words, "--rounds", "1", "--net", "linear", "--workers", "0", "--out", "own", "-q")
    assert said.code == 0, said.err
    assert (shell.folder / "own" / "model.safetensors").exists()
    config = tomllib.loads((shell.folder / "own" / "config.toml").read_text())
    assert config["data"]["name"] == str(shell.folder / data)  # so that it can be resumed from anywhere


def test_run_says_what_was_done_to_the_samples(shell: Shell) -> None:
    own_images(shell.folder)
    (shell.folder / "pics/labeled/a/broken.png").write_bytes(b"no image")
    Image.new("RGB", (20, 20)).save(shell.folder / "pics/labeled/a/red.png")
    settings = ("--set", "data.size=16", "--set", "data.skip_broken=true", "--labels", "all", "--clients", "2")
    words = ("--data", "pics", *settings, "--method", "fedavg+supervised", "--net", "linear", "--workers", "0")
    said = shell("run", *words, "--rounds", "1", "--out", "own")
    told = " ".join(said.out.split())
    assert said.code == 0, said.err
    assert "red.png is in colour among 37 images, so all are read in colour." in told
    assert "Left out, since they cannot be read: " in told
    assert "Left out, since they cannot be read: 1 file." in (shell.folder / "own/card.md").read_text()


def test_a_run_without_a_common_model_names_no_prediction_next(shell: Shell) -> None:
    assert shell.run("--out", "own", "--method", "local-only").lines[-1] == "next: tacit report own"


def test_next_commands_with_long_paths_are_one_per_line(shell: Shell) -> None:
    folder = "a-folder-with-a-rather-long-name"
    lines = shell.run("--out", folder).lines[-3:]
    assert [line.strip(" ,") for line in lines] == [
        f"next: tacit predict {folder} FOLDER",
        f"tacit evaluate {folder}",
        f"tacit report {folder}",
    ]
