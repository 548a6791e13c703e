"""A shell for tests: runs commands of the program in this process and captures what they print."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tacit.cli import app
from tacit.errors import TacitError


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Shell:
    """Runs commands in this process, in a new folder."""

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
            app.main()
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
[method]
name = "fedavg"
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


def fits(text: str) -> bool:
    return all(len(line) <= 80 for line in text.splitlines())


def code_of(*words: object) -> str:
    """The code of the error that a command raises."""
    with pytest.raises(TacitError) as caught:
        app.app([*map(str, words)], standalone_mode=False)
    return caught.value.code
