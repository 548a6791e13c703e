"""A task's token is in a file of its owner, never in a command line, which every user of a machine can read."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from flwr.supercore.superexec.executor import subprocess_executor

from tacit.engines.flower import superexec

pytestmark = pytest.mark.flower
WORDS = ["flwr-clientapp", "--runtime-api-address", "127.0.0.1:1", "--token", "secret", "--insecure"]


def test_a_token_goes_into_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    words = superexec.with_token_file(WORDS, tmp_path)
    (file,) = tmp_path.iterdir()
    assert words == [*WORDS[:3], "--token-file", str(file), "--insecure"]
    assert file.read_text() == "secret"
    assert file.stat().st_mode & 0o777 == 0o600
    assert superexec.with_token_file(["sleep", "1"], tmp_path) == ["sleep", "1"]


def test_old_tokens_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superexec, "KEPT", 2)
    for _ in range(4):
        last = superexec.with_token_file(WORDS, tmp_path)
    assert len([*tmp_path.iterdir()]) == 2
    assert Path(last[4]).exists()


def test_flowers_executor_starts_programs_without_their_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)
    superexec.hide_tokens(tmp_path / "tokens")
    program = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--token", "secret"]
    started = vars(subprocess_executor)["subprocess"].Popen(program, stdout=subprocess.PIPE)
    shown = started.communicate(timeout=60)[0].decode()
    assert "secret" not in shown
    assert "--token-file" in shown
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o700
