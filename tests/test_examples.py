"""The examples run, and the documents show them as they are."""

import sys
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.params import equal

ROOT = Path(__file__).parent.parent


@pytest.fixture
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "fedavgm", raising=False)


@pytest.mark.usefixtures("in_examples")
def test_a_method_outside_the_package_runs_and_without_momentum_is_fedavg() -> None:
    small: dict[str, Any] = {
        "labels": "client",
        "per_class": 2,
        "rounds": 2,
        "cohort": 2,
        "net": "linear",
        "workers": 2,
    }
    fedavg = tacit.run(method="fedavg+fixmatch", **small)
    plain = tacit.run(method="fedavgm:FedAvgM+fixmatch", **small | {"method.beta": 0.0})
    heavy = tacit.run(method="fedavgm:FedAvgM+fixmatch", **small)
    assert fedavg.params is not None
    assert plain.params is not None
    assert heavy.params is not None
    for name, value in fedavg.params.items():
        assert value.allclose(plain.params[name], atol=1e-6)  # w - (w - mean) is the mean, up to rounding
    assert not equal(heavy.params, plain.params)


@pytest.mark.parametrize("name", ["fedavgm.py", "test_fedavgm.py"])
def test_the_page_about_adding_a_method_shows_the_files_as_they_are(name: str) -> None:
    code = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


def test_the_readme_shows_a_whole_method_of_fewer_than_forty_lines() -> None:
    code = (ROOT / "examples" / "fedavgm.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert sum(1 for line in code.splitlines() if line.strip()) < 40


def test_the_readme_cites_the_version_that_this_is() -> None:
    assert f"version = {{{tacit.__version__}}}" in (ROOT / "README.md").read_text(encoding="utf-8")
