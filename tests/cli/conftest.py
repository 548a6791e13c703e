"""A shell in a folder with a small data set and a config."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli.shell import CONFIG, Shell
from tests.engines import farm


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    farm.write_images(tmp_path / "images.npz")
    x, y = np.zeros((40, 4, 4), np.uint8), np.zeros(40, np.int64)
    np.savez(tmp_path / "alike.npz", x=x, y=y, x_test=x, y_test=y)
    (tmp_path / "images.npz.toml").write_text(CONFIG)
    return Shell(monkeypatch, capsys, tmp_path)
