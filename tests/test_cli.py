"""The command line: what it prints, where, and that every mistake is one line and exit code 2."""

import errno
import html
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import tacit
from tacit import catalog, cli, display
from tacit import config as configs
from tacit.experiment import Experiment
from tests.engines import farm
from tests.toys import images


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Shell:
    """Runs commands in this process, in a folder of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._monkeypatch, self._capsys, self.folder = monkeypatch, capsys, folder
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path])
        for name, value in (("COLUMNS", "80"), ("TERM", "dumb"), ("NO_COLOR", "1")):
            monkeypatch.setenv(name, value)
        for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH"):
            monkeypatch.delenv(name, raising=False)

    def __call__(self, *words: object) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["tacit", *map(str, words)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, out, err)

    def run(self, *words: object) -> Said:
        """A small run that must succeed."""
        said = self("run", "images.npz.toml", *words)
        assert (said.code, said.err) == (0, "")
        return said


CONFIG = """
rounds = 2
[data]
name = "images.npz"
clients = 4
labels = "client"
per_class = 2
[train]
steps = 1
batch = 6
[net]
name = "linear"
[engine]
workers = 0
"""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    farm.write_images(tmp_path / "images.npz")
    x, y = np.zeros((40, 4, 4), np.uint8), np.zeros(40, np.int64)
    np.savez(tmp_path / "alike.npz", x=x, y=y, x_test=x, y_test=y)
    (tmp_path / "images.npz.toml").write_text(CONFIG)
    return Shell(monkeypatch, capsys, tmp_path)


def fits(text: str) -> bool:
    return all(len(line) <= 80 for line in text.splitlines())


def test_help_names_every_command(shell: Shell) -> None:
    for flag in ("--help", "-h"):
        said = shell(flag)
        assert (said.code, said.err) == (0, "")
        for command in ("demo", "ls", "show", "data", "run", "resume", "compare", "report", "bench"):
            assert f" {command} " in said.out
        assert fits(said.out)
        assert "\x1b" not in said.out


def test_without_a_command_help_is_shown_and_nothing_complains(shell: Shell) -> None:
    said = shell()
    assert "Usage" in said.out
    assert said.err == ""


@pytest.mark.parametrize("command", ["demo", "ls", "show", "data", "run", "resume", "compare", "report", "bench"])
def test_every_command_explains_itself(shell: Shell, command: str) -> None:
    said = shell(command, "--help")
    assert said.code == 0
    assert "Usage" in said.out
    assert fits(said.out)


def test_ls_lists_every_kind_with_a_sentence(shell: Shell) -> None:
    everything = shell("ls")
    assert everything.code == 0
    assert fits(everything.out)
    for kind in cli.KINDS:
        said = shell("ls", kind)
        assert said.code == 0
        assert said.lines[0].strip() == kind
        for name, about in catalog.listing(kind).items():
            assert any(line.split()[:1] == [name] for line in said.lines)
            assert about.split()[0] in said.out
        short = " ".join(everything.out.split())
        assert (" ".join(said.out.split()) in short) == (kind != "splits")  # these are many: on request


@pytest.mark.parametrize("method", [*catalog.methods(), "fedprox+supervised"])
def test_show_explains_every_setting(shell: Shell, method: str) -> None:
    said = shell("show", method)
    assert (said.code, said.err) == (0, "")
    assert fits(said.out)
    for section, kind in zip(("method", "objective"), catalog.method_kinds(method), strict=True):
        if kind is None:
            continue
        assert catalog.sentence(kind).split()[0] in said.out
        for item in catalog.settings(kind):
            if item.name != "objective":
                assert f"{section}.{item.name}" in said.out
                assert item.comment.split()[-1] in said.out


@pytest.mark.parametrize(
    "name, option",
    [
        ("fixmatch", "--method fedavg+fixmatch"),
        ("lenet", "--net lenet"),
        ("dirichlet:0.3", "--partition dirichlet:0.3"),
        ("mnist", "--data mnist"),
        ("fedmatch-batch-iid", "--split fedmatch-batch-iid"),
    ],
)
def test_show_knows_whatever_is_listed(shell: Shell, name: str, option: str) -> None:
    said = shell("show", name)
    assert (said.code, said.err) == (0, "")
    assert said.lines[-1].strip() == f"as in {option}"
    kind = next(kind for kind in cli.KINDS if name.partition(":")[0] in catalog.listing(kind))
    assert catalog.listing(kind)[name.partition(":")[0]].split()[0] in said.out
    assert fits(said.out)


def test_show_lists_the_words_that_a_setting_may_be(shell: Shell) -> None:
    """In lines of their own, below what they mean; a number has none."""
    (shell.folder / "worded.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Annotated, Literal\n\n\n@dataclass(frozen=True)\n"
        'class Mine:\n    """In words."""\n\n    way: Literal["up", "down"] = "up"  # where to\n'
        '    pace: Annotated[Literal["slow", "fast"] | None, "a note"] = None  # how\n    size: int = 3  # how much\n'
        "    needs = start = send = client_update = merge = model = None\n"
    )
    rows = [line.strip().split(maxsplit=2) for line in shell("show", "worded:Mine").lines[-6:-1]]
    sys.modules.pop("worded")
    assert rows == [
        ["method.way", '"up"', "where to"],
        ["up", "|", "down"],
        ["method.pace", "null", "how"],
        ["slow", "|", "fast"],
        ["method.size", "3", "how much"],
    ]
    assert "all | sampled" in [line.strip() for line in shell("show", "fedseal").lines]


def test_show_keeps_brackets(shell: Shell) -> None:
    """They are not markup here: `[train]` names a section."""
    (shell.folder / "bracketed.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Mine:\n"
        '    """Uses [train] and [/nothing]."""\n\n    size: tuple = (1, 2)  # of [bold] things\n'
        "    needs = start = send = client_update = merge = model = None\n"
    )
    said = shell("show", "bracketed:Mine")
    sys.modules.pop("bracketed")
    assert said.code == 0
    for text in ("Uses [train] and [/nothing].", "of [bold] things", "[1, 2]"):
        assert text in said.out


def test_run_prints_plain_lines_and_saves_the_run(shell: Shell) -> None:
    said = shell.run("--out", "mine", "--rounds", 3, "--seed", 4)
    assert said.lines[-1].startswith("accuracy ")
    assert said.lines[-1].endswith("saved in mine")
    assert said.lines[-2].startswith("round 3/3  acc ")
    assert "loss" in said.lines[-2]
    assert fits(said.out)
    assert "\x1b" not in said.out
    assert "\r" not in said.out
    config = tacit.resume(shell.folder / "mine").config
    assert (config.rounds, config.seed, config.train.batch) == (3, 4, 6)


def test_options_set_and_file_come_in_this_order(shell: Shell) -> None:
    words = ("--method", "fedprox+fixmatch", "--lr", 0.5, "--set", "method.mu=0.25", "--set", "train.lr=0.125")
    shell.run("--quiet", "--out", "mine", "--batch", 7, "--set=objective.threshold=0.5", *words)
    config = tacit.resume(shell.folder / "mine").config
    assert config.method == {"name": "fedprox+fixmatch", "mu": 0.25}
    assert config.objective == {"threshold": 0.5}
    assert (config.train.batch, config.train.steps) == (7, 1)
    assert config.train.lr == 0.125


def test_every_option_of_the_command_line_reaches_the_config(shell: Shell) -> None:
    """Each short name once, at a value that is not its default."""
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


def test_without_out_every_run_gets_a_folder_of_its_own(shell: Shell) -> None:
    first, second = shell.run("--quiet"), shell.run("--quiet")
    places = [said.lines[-1].rpartition("saved in ")[2] for said in (first, second)]
    assert places == ["runs/fedavg-images", "runs/fedavg-images-2"]
    assert all((shell.folder / place / "model.safetensors").exists() for place in places)


def test_quiet_prints_the_last_line_only(shell: Shell) -> None:
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


def test_json_lines_are_json_even_where_numbers_are_not_finite(shell: Shell) -> None:
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
    """A method that fails at one client, with words that look like markup."""
    (shell.folder / "noisy.py").write_text(NOISY)
    yield "noisy:Noisy"
    sys.modules.pop("noisy")


def test_clients_that_are_left_out_are_named_with_the_reason_as_it_is(shell: Shell, noisy: str) -> None:
    said = shell.run("--method", noisy, "--out", "mine")
    assert said.lines[0] == LEFT_OUT
    assert "[/red]" in (shell.folder / "mine" / "errors.log").read_text()


CARELESS = """
from dataclasses import dataclass

from tests.engines.farm import *


@dataclass(frozen=True)
class Seen:
    clients: object


@dataclass(frozen=True)
class Hoarder(Tally):
    def merge(self, server, state, ups):
        return Seen(set(ups))

    def model(self, state):
        return None


@dataclass(frozen=True)
class Chatty(Tally):
    def send(self, server, state):
        return state, {client: Seen({client}) for client in server.cohort}
"""


@pytest.mark.parametrize("kind", ["Hoarder", "Chatty"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_or_message_that_can_not_travel_is_one_sentence(shell: Shell, kind: str, workers: int) -> None:
    (shell.folder / "careless.py").write_text(CARELESS)
    words = ("--method", f"careless:{kind}", "--workers", workers, "--out", "mine")
    said = shell("run", "images.npz.toml", *words)
    sys.modules.pop("careless")
    assert said.code == 2
    assert said.err.splitlines()[-1].startswith("tacit: a set can not travel: use tensors, numbers, strings, ")
    assert not (shell.folder / "mine" / "checkpoint" / "latest.json").exists()


def test_a_terminal_gets_a_bar_with_the_same_news(shell: Shell, noisy: str) -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    config = configs.from_options({"method": noisy}, configs.read(Path("images.npz.toml")))
    display.play(Experiment.create(config, Path("mine")), "auto", console)
    shown = screen.getvalue()
    assert LEFT_OUT in shown
    assert "noisy:Noisy" in shown
    assert "2/2" in shown
    assert "acc " in shown


def test_a_folder_named_with_brackets_is_named_in_full(shell: Shell) -> None:
    assert shell.run("--quiet", "--out", "my [bold] run").out.endswith("saved in my [bold] run\n")


def test_a_site_in_a_long_folder_is_told_commands_in_one_piece(shell: Shell) -> None:
    place = f"{'long/' * 20}my site"
    said = shell("site", "init", place, "--name", "a", "--insecure")
    assert (said.code, said.err) == (0, "")
    assert said.lines[0] == f"The site a is set up in {place}/site.toml. Next:"
    commands = [line.strip() for line in said.lines if line.strip().startswith("tacit ")]
    assert commands == [f"tacit site check '{place}/site.toml'", f"tacit site join HOST:PORT --site '{place}'"]


def test_resume_goes_on_and_a_finished_run_is_only_reported(shell: Shell) -> None:
    shell.run("--quiet", "--out", "alone")
    config = configs.make(configs.read(Path("alone/config.toml")))
    rounds = Experiment.create(config, Path("mine")).rounds()
    next(rounds)
    rounds.close()
    said = shell("resume", "mine", "--json")
    assert said.code == 0
    assert [strict_json(line).get("round") for line in said.lines] == [1, None]
    done = shell("resume", "mine")
    assert done.lines == [shell("resume", "alone", "--quiet").lines[0].replace("alone", "mine")]


def test_report_writes_one_page(shell: Shell) -> None:
    shell.run("--quiet", "--out", "one")
    shell.run("--quiet", "--out", "two", "--seed", 1)
    said = shell("report", "one", "two", "--out", "page.html")
    assert (said.code, said.err) == (0, "")
    assert said.lines == ["report: page.html"]
    text = (shell.folder / "page.html").read_text()
    assert "tacit run one/config.toml\ntacit run two/config.toml</code>" in text
    assert "Heat map of 4 clients" in text


def test_report_draws_files_on_request(shell: Shell) -> None:
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
    assert [
        line for line in said.lines if "pseudo-accuracy" not in line
    ] == [  # which needs a pseudo-label that is kept
        *(f"plot: figures/{name}.svg" for name in names),
        "report: report.html",
    ]
    refused = shell("report", "one", "--plots", "other", "--format", "gif", "--out", "other.html")
    assert (refused.code, refused.err) == (2, "tacit: unknown format 'gif': choose one of pdf, png, svg\n")
    assert not (shell.folder / "other").exists()
    assert not (shell.folder / "other.html").exists()


def test_compare_runs_everything_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg+fixmatch, local-only", "--seeds", "0,1", "--out", "all")
    said = shell(*words, "--set", "train.lr=0.125")
    assert (said.code, said.err) == (0, "")
    places = [Path("all") / method / f"seed-{seed}" for method in ("fedavg+fixmatch", "local-only") for seed in (0, 1)]
    for place in places:
        run = tacit.resume(shell.folder / place)
        assert (run.config.method_name, run.config.seed) == (place.parent.name, int(place.name[-1]))
        assert run.config.train.lr == 0.125
    assert "fedavg+fixmatch" in said.out
    assert "±" in said.out
    assert said.lines[-1] == "report: all/report.html"
    methods = "--methods 'fedavg+fixmatch, local-only' --seeds 0,1"
    command = f"tacit compare images.npz.toml {methods} --out all --set train.lr=0.125"
    assert html.escape(command) in (shell.folder / "all/report.html").read_text()
    assert shell("report", "all").code == 0
    assert html.escape(command) in (shell.folder / "report.html").read_text()
    assert fits(said.out)
    before = {path: path.stat().st_mtime_ns for place in places for path in (shell.folder / place).rglob("*")}

    def forbidden(*_: object) -> None:
        raise AssertionError("a finished run was played again")

    monkeypatch.setattr("tacit.display.play", forbidden)
    again = shell(*words, "--set", "train.lr=0.125")
    assert again.code == 0
    assert before == {path: path.stat().st_mtime_ns for place in places for path in (shell.folder / place).rglob("*")}
    other = shell(*words, "--set", "train.lr=0.25")
    assert other.code == 2
    assert "holds a run with another config: choose another --out" in other.err


def test_compare_adds_bounds(shell: Shell) -> None:
    bounds = "labels-only,all-labels,all-labels-strong"
    words = ("compare", "images.npz.toml", "--methods", f"{bounds},fedavg+fixmatch", "--out", "all", "-q")
    said = shell(*words, "--set", "objective.threshold=0.5")
    assert said.code == 0, said.err
    written = (shell.folder / "all").rglob("config.toml")
    settings = {path.parent.parent.name: tomllib.loads(path.read_text()) for path in written}
    assert settings["labels-only"]["method"]["name"] == "fedavg+supervised"
    assert settings["all-labels"]["data"]["labels"] == settings["all-labels-strong"]["data"]["labels"] == "all"
    assert settings["all-labels-strong"]["objective"] == {"view": "strong"}
    assert settings["all-labels"]["objective"] == {}
    assert settings["fedavg+fixmatch"]["objective"] == {"threshold": 0.5}
    for row in bounds.split(","):
        assert any(line.split()[:1] == [row] for line in said.lines)
    at_server = shell(*words[:-2], "other", "-q", "--set", "data.labels=server")
    assert at_server.code == 0, at_server.err
    labels_only = tomllib.loads((shell.folder / "other/labels-only/seed-0/config.toml").read_text())
    assert labels_only["method"]["name"] == "server-only+supervised"
    assert shell("report", "all", "-o", "page.html").code == 0
    assert "all-labels-strong" in (shell.folder / "page.html").read_text()


def test_a_misspelt_bound_is_answered_with_the_bound(shell: Shell) -> None:
    said = shell("compare", "images.npz.toml", "--methods", "all-lables", "--out", "all")
    assert (said.code, said.err) == (2, "tacit: unknown method 'all-lables': did you mean 'all-labels'?\n")


def test_show_names_the_presets(shell: Shell) -> None:
    assert "method.preset: as-written, as-released, as-released-server" in shell("show", "fedmatch").out


@pytest.mark.parametrize("section", ["train", "server", "data", "net", "engine", "faults", "log", "track"])
def test_every_section_of_a_config_can_be_shown(shell: Shell, section: str) -> None:
    said = shell("show", section)
    assert (said.code, said.err, fits(said.out)) == (0, "", True)
    assert f"\n{section}." in said.out


def test_a_partition_is_shown_with_the_number_it_needs(shell: Shell) -> None:
    assert shell("show", "dirichlet").lines[-1] == "as in --partition dirichlet:0.3"
    assert shell("show", "iid").lines[-1] == "as in --partition iid"
    assert shell("show", "by-writer").lines[-1] == "as in --partition by-writer"


def test_compare_gives_each_method_the_settings_it_has(shell: Shell) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg+fixmatch,fedsem", "--out", "all", "-q")
    said = shell(*words, "--set", "objective.threshold=0.5", "--set", "method.first=0.5")
    assert said.code == 0, said.err
    written = {
        path.parent.parent.name: tomllib.loads(path.read_text()) for path in (shell.folder / "all").rglob("*.toml")
    }
    assert written["fedavg+fixmatch"]["objective"] == {"threshold": 0.5}
    assert written["fedavg+fixmatch"]["method"] == {"name": "fedavg+fixmatch"}
    assert written["fedsem"]["objective"] == {}
    assert written["fedsem"]["method"] == {"name": "fedsem", "first": 0.5}


def test_compare_checks_every_method_before_the_first_one_runs(shell: Shell) -> None:
    said = shell("compare", "images.npz.toml", "--methods", "fedavg,fedseal", "--out", "all", "-q")
    assert (said.code, "fedseal needs labels at the server" in said.err) == (2, True)
    assert not (shell.folder / "all").exists()


def test_compare_says_where_labels_alone_had_less_training(shell: Shell) -> None:
    words = ("--methods", "labels-only,fedavg+fixmatch", "-q", "--set", "data.clients=1", "--out")
    assert "labels-only made" not in shell("compare", "images.npz.toml", *words, "steps").out  # as many steps each
    (shell.folder / "epochs.toml").write_text(CONFIG.replace("steps = 1\n", ""))
    said = shell("compare", "epochs.toml", *words, "epochs")
    assert "labels-only made 2 steps where others made up to 38: " in said.out, said.out + said.err


def test_compare_counts_a_seed_once(shell: Shell) -> None:
    said = shell("compare", "images.npz.toml", "--methods", "fedavg,fedavg", "--seeds", "1,1,01", "--out", "all", "-q")
    assert said.code == 0
    assert "±" not in said.out
    assert [path.name for path in (shell.folder / "all").iterdir() if path.is_dir()] == ["fedavg"]


def test_compare_goes_on_with_an_interrupted_run(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg", "--seeds", "3", "--out", "all", "--quiet")
    played: list[int] = []
    rounds = Experiment.rounds

    def stop_after_one(self: Experiment) -> Iterator[object]:
        for record in rounds(self):
            played.append(record.round)
            yield record
            if len(played) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "rounds", stop_after_one)
    assert shell(*words).code == 130
    assert shell(*words).code == 0
    assert played == [0, 1]


def test_compare_goes_on_with_another_number_of_workers(shell: Shell) -> None:
    words = ("compare", "images.npz.toml", "--methods", "fedavg", "--out", "all", "--quiet")
    assert shell(*words).code == 0
    said = shell(*words, "--set", "engine.workers=1", "--set", "engine.deadline=60")
    assert (said.code, said.err) == (0, "")


def test_compare_takes_the_seed_of_its_config(shell: Shell) -> None:
    with (shell.folder / "images.npz.toml").open("r+") as file:
        file.write(f"seed = 7\n{CONFIG}")
    said = shell("compare", "images.npz.toml", "--methods", "fedavg", "--out", "all", "-q")
    assert (said.code, said.err) == (0, "")
    assert "seeds 7" in said.out
    assert [path.name for path in (shell.folder / "all/fedavg").iterdir()] == ["seed-7"]


@pytest.mark.parametrize(
    "words, what, said",
    [
        (("compare", "images.npz.toml", "--methods", "fedavg"), "tacit.compare.compare", "with the same command"),
        (("demo", "--out", "my demo"), "tacit.demo.show", "with: tacit demo --out 'my demo'"),
        (("demo",), "tacit.demo.show", "with: tacit demo --out runs/demo"),
    ],
)
def test_ctrl_c_says_how_to_go_on_with_several_runs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], what: str, said: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(what, interrupt)
    stopped = shell(*words)
    assert (stopped.code, stopped.err) == (130, f"stopped; go on {said}\n")
    assert not (shell.folder / "runs").exists()


def test_all_configs_of_a_comparison_are_checked_before_the_first_one_runs(shell: Shell) -> None:
    said = shell("compare", "images.npz.toml", "--methods", "fedavg,fedawg", "--out", "all")
    assert said.code == 2
    assert "did you mean 'fedavg'?" in said.err
    assert not (shell.folder / "all").exists()


MISTAKES = {
    "unknown command": (["rum"], "rum"),
    "misspelt command": (["bnch"], "No such command 'bnch'. Did you mean 'bench'?\n"),
    "unknown option": (["run", "--round", "3"], "--round"),
    "missing argument": (["resume"], "folder"),
    "misspelt method": (["run", "--method", "fedavgg"], "did you mean 'fedavg'?"),
    "misspelt objective": (["run", "--method", "fedavg+fixmach"], "did you mean 'fixmatch'?"),
    "misspelt net": (["run", "--net", "lennet"], "did you mean 'lenet'?"),
    "misspelt data set": (["run", "--data", "fashion"], "did you mean 'fashion-small'?"),
    "a folder without its slash": (
        ["run", "--data", "my-scans"],
        "or a path of your own such as ./my-scans",
    ),
    "a single class": (["run", "--data", "alike.npz", "--labels", "all"], "has one class only, 0: add labeled samples"),
    "misspelt partition": (["run", "--partition", "idd"], "did you mean 'iid'?"),
    "sites without a hub": (["run", "--partition", "sites"], "use `tacit hub run`, or another --partition"),
    "a look at data of sites": (["data", "--partition", "sites"], "use `tacit hub run`, or another --partition"),
    "a site without settings": (["site", "check"], "there is no site.toml: make it with `tacit site init`"),
    "misspelt kind": (["ls", "method"], "did you mean 'methods'?"),
    "misspelt method to show": (["show", "fedproxx"], "did you mean 'fedprox'?"),
    "wrong type": (["run", "--rounds", "many"], "--rounds"),
    "impossible value": (["run", "--rounds", "0"], "rounds = 0 is not possible"),
    "no labels": (["run", "--labels", "client"], "give --per-class"),
    "unmet need": (["run", "--labels", "client", "--per-class", "1", "--method", "server-only"], "--labels server"),
    "missing config": (["run", "nowhere.toml"], "there is no file nowhere.toml"),
    "folder as config": (["run", "."], ". is a folder: give the path of a TOML config"),
    "broken TOML": (["run", "broken.toml"], "broken.toml is not valid TOML"),
    "unknown key": (["run", "odd.toml"], "did you mean 'rounds'?"),
    "no assignment": (["run", "--set", "method.mu"], "write --set section.name=value"),
    "set of nothing known": (["run", "--set", "train.lrr=1"], "did you mean 'lr'?"),
    "set of a section": (["run", "--set", "train=1"], "train is a section"),
    "existing out": (["run", "images.npz.toml", "--out", "full"], "is not an empty folder: choose another --out"),
    "out in a file": (["run", "images.npz.toml", "--out", "images.npz/x"], "can not write to images.npz/x"),
    "missing data file": (["run", "--data", "none.npz", "--per-class", "1"], "none.npz: check the path"),
    "broken data file": (["run", "--data", "broken.npz", "--per-class", "1"], "broken.npz can not be read"),
    "no such device": (["run", "images.npz.toml", "--device", "abacus"], "there is no device 'abacus' here"),
    "resume of nothing": (["resume", "nowhere"], "nowhere holds no run"),
    "resume of another folder": (["resume", "full"], "full holds no run"),
    "bad seeds": (["compare", "images.npz.toml", "--methods", "fedavg", "--seeds", "0,x"], "'x' is not a seed"),
    "odd seeds": (["compare", "images.npz.toml", "--methods", "fedavg", "--seeds", "²"], "'²' is not a seed"),
    "negative seeds": (["compare", "images.npz.toml", "--methods", "fedavg", "--seeds", "-1"], "'-1' is not a seed"),
    "no seeds": (["compare", "images.npz.toml", "--methods", "fedavg", "--seeds", ","], "--seeds is empty"),
    "a seed for a comparison": (
        ["compare", "images.npz.toml", "--methods", "fedavg", "--set", "seed=5"],
        "seeds are given with --seeds: leave out --set seed",
    ),
    "every round and none": (["run", "images.npz.toml", "--json", "--quiet"], "leave out one of them"),
    "every round and none again": (["resume", "full", "--json", "--quiet"], "leave out one of them"),
    "no methods": (["compare", "images.npz.toml", "--methods", ""], "--methods is empty"),
    "compare without config": (["compare", "nowhere.toml", "--methods", "fedavg"], "there is no file"),
    "report of nothing": (["report", "nowhere"], "there is no folder nowhere"),
    "report of another folder": (["report", "full"], "full holds no run: give a folder that has some, or make one"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(shell: Shell, mistake: str) -> None:
    words, hint = MISTAKES[mistake]
    (shell.folder / "full").mkdir()
    (shell.folder / "full" / "other.txt").write_text("something")
    (shell.folder / "broken.toml").write_text("rounds = = 3")
    (shell.folder / "odd.toml").write_text("roundss = 3")
    (shell.folder / "broken.npz").write_bytes(b"PK\x03\x04 and so on")
    before = sorted(shell.folder.rglob("*"))
    said = shell(*words)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("tacit: ")
    assert hint.lower() in said.err.lower()  # versions of typer differ in capitals
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert sorted(shell.folder.rglob("*")) == before, "something was written"


def test_a_run_that_can_not_go_on_says_how_to(shell: Shell) -> None:
    said = shell("run", "images.npz.toml", "--set", "faults.crash=1.0", "--out", "mine")
    assert said.code == 2
    assert said.err.count("\n") == 1
    assert "0 of 4 clients replied" in said.err
    assert "its worker died twice" in said.err
    assert said.err.endswith("resume with `tacit resume mine`\n")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tacit.display.play", interrupt)
        said = shell("run", "images.npz.toml", "--out", "mine")
    assert said.code == 130
    assert said.err == "stopped after round 0 of 2; go on with: tacit resume mine\n"
    with monkeypatch.context() as patch:
        patch.setattr("tacit.display.play", interrupt)
        assert shell("run", "images.npz.toml", "--out", "my run").err.endswith("tacit resume 'my run'\n")
    assert len(tacit.resume(shell.folder / "mine").history) == 2


def test_a_config_that_was_changed_is_not_gone_on_with(shell: Shell) -> None:
    shell.run("--quiet", "--out", "mine")
    config = shell.folder / "mine/config.toml"
    text = config.read_text()
    config.write_text(text.replace("workers = 0", "workers = 1"))
    assert shell("resume", "mine", "--quiet").code == 0  # who carries it changes nothing
    for old, new in (("rounds = 2", "rounds = 4"), ("lr = 0.01", "lr = 0.05"), ("seed = 0", "seed = 1")):
        assert old in text
        config.write_text(text.replace(old, new, 1))
        said = shell("resume", "mine", "--quiet")
        sentence = "mine/config.toml was changed since the run began: restore it, or start a new run with it"
        assert (said.code, said.err) == (2, f"tacit: {sentence}\n")


def test_a_file_that_is_no_report_is_not_written_over(shell: Shell) -> None:
    shell.run("--quiet", "--out", "mine")
    (shell.folder / "report.html").write_text("precious")
    said = shell("report", "mine")
    assert (said.code, "give another name with --out, or remove it" in said.err) == (2, True)
    assert (shell.folder / "report.html").read_text() == "precious"
    for _ in range(2):  # one of ours may be
        assert shell("report", "mine", "--out", "ours.html").code == 0


def test_what_the_system_refuses_is_one_sentence(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the file, and wherever it is opened."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/some/file")

    monkeypatch.setattr(catalog, "listing", refused)
    said = shell("ls")
    assert (said.code, said.err) == (2, "tacit: can not use /some/file: Permission denied; mend that, then try again\n")


def test_a_folder_in_place_of_the_log_is_one_sentence(shell: Shell) -> None:
    shell.run("--quiet", "--out", "mine")
    (shell.folder / "mine/rounds.jsonl").rename(shell.folder / "mine/rounds")
    (shell.folder / "mine/rounds.jsonl").mkdir()
    said = shell("resume", "mine", "--quiet")
    assert said.code == 2
    sentence = "mine/rounds.jsonl can not be written (Is a directory): mend that, then resume with `tacit resume mine`"
    assert said.err == f"tacit: {sentence}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a disk that is always full")
@pytest.mark.parametrize("words", [("ls", "nets"), ("--version",)], ids=" ".join)
def test_output_that_nothing_takes_is_one_sentence(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        said = shell(*words)
        full.flush()  # as Python does at its end
    assert (said.code, said.err) == (2, "tacit: can not go on: No space left on device; mend that, then try again\n")


@pytest.mark.parametrize("words", [("ls", "nets"), ("--version",)], ids=" ".join)
def test_output_that_nobody_reads_on_ends_in_silence(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        said = shell(*words)
    assert (said.code, said.err) == (1, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_a_terminal_does_not_know_are_question_marks(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    printed = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, encoding=encoding))
    assert (shell("show", "fedmatch").code, shell("show", "fedmatch").err) == (0, "")
    assert b"?" in printed.getvalue()


def test_help_imports_nothing_heavy() -> None:
    """In a process of its own, since this one has everything; the shell's completion begins in the same way."""
    code = (
        "import sys\nfrom tacit.cli import main\nsys.argv = ['tacit', sys.argv[1], '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'numpy', 'pydantic', 'matplotlib', 'flwr', 'mlflow', 'tempfile'} & sys.modules.keys())"
    )
    for command in ("--help", "run"):
        done = subprocess.run(
            [sys.executable, "-c", code, command], capture_output=True, text=True, timeout=farm.PATIENCE, check=True
        )
        assert "Usage: " in done.stdout
        assert done.stdout.splitlines()[-1] == "set()"


def test_the_program_starts_and_passes_its_exit_code_on() -> None:
    """Once for real, as `python -m tacit`."""
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "tacit", "show", "fedavgg"],
        capture_output=True,
        text=True,
        timeout=farm.PATIENCE,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "tacit: unknown method 'fedavgg': did you mean 'fedavg'?\n"


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
def test_folders_and_manifests_are_looked_at_and_trained_on(shell: Shell, data: str, where: tuple[str, ...]) -> None:
    own_images(shell.folder)
    words = ("--data", data, *where, "--clients", "2", "--set", "data.size=16")
    looked = shell("data", *words, "--out", "look")
    assert looked.code == 0, looked.err
    assert (shell.folder / "look" / "partition.png").exists()
    said = shell("run", *words, "--rounds", "1", "--net", "linear", "--workers", "0", "--out", "own", "-q")
    assert said.code == 0, said.err
    assert (shell.folder / "own" / "model.safetensors").exists()
    config = tomllib.loads((shell.folder / "own" / "config.toml").read_text())
    assert config["data"]["name"] == str(shell.folder / data)  # so that it can be resumed from anywhere
