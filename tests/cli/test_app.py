"""Help, `tacit ls`, `tacit show`, and how the program starts."""

import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tacit.runs import registry
from tacit.runs.config import make
from tests.cli.shell import Shell, fits
from tests.engines import farm


def test_help_names_every_command(shell: Shell) -> None:
    for flag in ("--help", "-h"):
        said = shell(flag)
        assert (said.code, said.err) == (0, "")
        for command in ("demo", "ls", "show", "data", "run", "resume", "compare", "report", "bench"):
            assert f" {command} " in said.out
        assert fits(said.out)
        assert "\x1b" not in said.out


def test_without_a_command_the_help_is_printed(shell: Shell) -> None:
    said = shell()
    assert "Usage" in said.out
    assert said.err == ""


@pytest.mark.parametrize("command", ["demo", "ls", "show", "data", "run", "resume", "compare", "report", "bench"])
def test_every_command_has_a_help_page(shell: Shell, command: str) -> None:
    said = shell(command, "--help")
    assert said.code == 0
    assert "Usage" in said.out
    assert fits(said.out)


def test_ls_lists_every_kind_with_a_description(shell: Shell) -> None:
    everything = shell("ls")
    assert everything.code == 0
    assert fits(everything.out)
    for kind in registry.KINDS:
        said = shell("ls", kind)
        assert said.code == 0
        assert said.lines[0].strip() == kind
        for name, about in registry.listing(kind).items():
            assert any(line.split()[:1] == [name] for line in said.lines)
            assert about.split()[0] in said.out
        short = " ".join(everything.out.split())
        assert (" ".join(said.out.split()) in short) == (kind != "splits"), "splits are many, so only on request"


@pytest.mark.parametrize("command, words", [("run", "TOML config file"), ("export", "Folder of a run")])
def test_the_help_explains_arguments(shell: Shell, command: str, words: str) -> None:
    assert words in shell(command, "--help").out


def test_the_help_of_ls_names_every_kind(shell: Shell) -> None:
    words = shell("ls", "--help").out.replace(",", " ").replace(":", " ").split()
    assert set(registry.KINDS) <= set(words)


@pytest.mark.parametrize("method", [*registry.methods(), "fedprox+supervised"])
def test_show_lists_every_setting_of_a_method(shell: Shell, method: str) -> None:
    said = shell("show", method)
    assert (said.code, said.err) == (0, "")
    assert fits(said.out)
    for section, kind in zip(("method", "objective"), registry.method_kinds(method), strict=True):
        if kind is None:
            continue
        assert registry.sentence(kind).split()[0] in said.out
        for item in registry.settings_of(kind):
            if item.name != "objective":
                assert f"{section}.{item.name}" in said.out
                assert item.comment.split()[-1] in said.out


def test_show_server_has_the_defaults_that_runs_use(shell: Shell) -> None:
    shown = {line.split()[0]: line.split()[1] for line in shell("show", "server").lines if "server." in line[:8]}
    server = make({}).server_train
    assert (shown["server.epochs"], shown["server.batch"]) == (str(server.epochs), str(server.batch))
    assert shown["server.lr"] == "train.lr"


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
def test_show_explains_every_kind_of_name_and_its_option(shell: Shell, name: str, option: str) -> None:
    said = shell("show", name)
    assert (said.code, said.err) == (0, "")
    assert said.lines[-1].strip() == f"Use it with {option}"
    kind = next(kind for kind in registry.KINDS if name.partition(":")[0] in registry.listing(kind))
    assert registry.listing(kind)[name.partition(":")[0]].split()[0] in said.out
    assert fits(said.out)


def test_show_lists_the_words_that_a_setting_may_be(shell: Shell) -> None:
    """They are on a separate line below the comment; a number has none."""
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


def test_show_prints_brackets_as_they_are(shell: Shell) -> None:
    """They are not markup: `[train]` names a section."""
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


def test_show_names_the_presets(shell: Shell) -> None:
    assert "method.preset: as-written, as-released, as-released-server" in shell("show", "fedmatch").out


@pytest.mark.parametrize("section", ["train", "server", "data", "net", "engine", "faults", "log", "track"])
def test_show_explains_every_section_of_a_config(shell: Shell, section: str) -> None:
    said = shell("show", section)
    assert (said.code, said.err, fits(said.out)) == (0, "", True)
    assert f"\n{section}." in said.out


def test_show_adds_the_number_that_a_partition_needs(shell: Shell) -> None:
    assert shell("show", "dirichlet").lines[-1] == "Use it with --partition dirichlet:0.3"
    assert shell("show", "iid").lines[-1] == "Use it with --partition iid"
    assert shell("show", "by-writer").lines[-1] == "Use it with --partition by-writer"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_terminal_lacks_become_question_marks(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    printed = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, encoding=encoding))
    assert (shell("show", "fedmatch").code, shell("show", "fedmatch").err) == (0, "")
    assert b"?" in printed.getvalue()


def test_help_imports_nothing_heavy() -> None:
    """In a new process, since this one has imported everything; shell completion starts the same way."""
    code = (
        "import sys\nfrom tacit.cli.app import main\nsys.argv = ['tacit', sys.argv[1], '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'numpy', 'pydantic', 'matplotlib', 'flwr', 'mlflow', 'tempfile'} & sys.modules.keys())"
    )
    for command in ("--help", "run", "data", "ls"):
        done = subprocess.run(
            [sys.executable, "-c", code, command], capture_output=True, text=True, timeout=farm.PATIENCE, check=True
        )
        assert "Usage: " in done.stdout
        assert done.stdout.splitlines()[-1] == "set()"


def test_python_m_tacit_runs_the_program_and_returns_its_exit_code() -> None:
    root = Path(__file__).parent.parent.parent
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
    assert done.stderr == "tacit: unknown method 'fedavgg'; did you mean 'fedavg'?\n"
