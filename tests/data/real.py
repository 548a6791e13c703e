"""The real data files, on machines that have them; elsewhere tests that need one are skipped."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"
MADE = Path(tempfile.gettempdir()) / "cifar"  # where CIFAR-10 is assembled once, for all test runs
SECONDS = 300  # allowed for assembling it


def folder_with(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first place that has a file or folder of this name; it becomes the test's data folder."""
    for place in (os.environ.get("TACIT_DATA", ""), SHARED, MADE):
        if place and (Path(place) / name).exists():
            monkeypatch.setenv("TACIT_DATA", str(place))
            return Path(place)
    pytest.skip(f"{name} is not on this machine")


def cifar10(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that holds CIFAR-10; it becomes the test's data folder."""
    folder = cifar10_folder()
    monkeypatch.setenv("TACIT_DATA", str(folder))
    return folder


def cifar10_folder() -> Path:
    """The folder that holds CIFAR-10, assembled first if only the script for it is available."""
    if (found := _with_cifar10()) is None:
        _make_cifar10()
        found = _with_cifar10()
    if found is None:
        pytest.skip("CIFAR-10 is not on this machine")
    return found


def _with_cifar10() -> Path | None:
    places = (Path(os.environ.get("TACIT_DATA", "nowhere")), SHARED, MADE)
    return next((place for place in places if (place / "cifar-10-batches-bin" / "test_batch.bin").exists()), None)


def _make_cifar10() -> None:
    maker = SHARED / "make_cifar10"
    if not maker.exists():
        pytest.skip("CIFAR-10 is not on this machine")
    partial = MADE.with_name(f"cifar-{os.getpid()}")
    try:
        subprocess.run([sys.executable, maker, partial], check=True, capture_output=True, timeout=SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"CIFAR-10 could not be assembled here: {error}")
    if not MADE.exists():
        partial.rename(MADE)
