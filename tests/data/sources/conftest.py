"""The data folder of tests."""

from pathlib import Path

import pytest

from tacit.data.sources import known


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty data folder, where files need not have the checksums of the originals."""
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    for key in list(known.SUMS):
        monkeypatch.delitem(known.SUMS, key)
    return tmp_path
