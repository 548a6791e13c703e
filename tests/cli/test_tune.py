"""`tacit tune`: a search from the command line, continued by the same command."""

import pytest

from tests.cli.shell import Shell, code_of, fits

pytest.importorskip("optuna", reason="the search needs the extra tune: pip install 'tacit[tune]'")

WORDS = ("tune", "images.npz.toml", "--space", "train.lr=0.01..0.5", "--set", "data.validation=12", "--out", "t")


def test_a_search_prints_its_trials_and_continues(shell: Shell) -> None:
    said = shell(*WORDS, "--trials", 2)
    assert (said.code, said.err) == (0, "")
    assert fits(said.out)
    assert said.lines[0].startswith("trial 0  validation ")
    assert said.lines[-1] == "best: t/best.toml"
    assert "with 12 validation samples, differences below about" in said.out
    more = shell(*WORDS, "--trials", 3)
    assert more.lines[0].startswith("trial 2  validation ")
    assert shell("run", "t/best.toml", "--quiet").code == 0


def test_mistakes_are_refused(shell: Shell) -> None:
    assert code_of(*WORDS[:2], "--space", "lr", "--out", "t") == "tune.not-a-space"
    assert code_of(*WORDS[:4], "--out", "t") == "tune.no-validation"
