"""The examples run, and the docs show them and the stored results."""

import json
import re
import sys
import tomllib
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import tacit
from tacit.params import equal
from tacit.runs import config as configs

ROOT = Path(__file__).parent.parent


@pytest.fixture
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "fedavgm", raising=False)


@pytest.mark.usefixtures("in_examples")
def test_the_example_method_without_momentum_is_fedavg() -> None:
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
def test_the_page_on_adding_a_method_shows_the_example_files(name: str) -> None:
    code = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")


def test_the_readme_shows_a_whole_method_of_fewer_than_forty_lines() -> None:
    code = (ROOT / "examples" / "fedavgm.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert sum(1 for line in code.splitlines() if line.strip()) < 40


def test_the_readme_cites_and_installs_this_version() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"version = {{{tacit.__version__}}}" in text
    assert set(re.findall(r"tacit-(\S+)-py3-none-any", text)) == {tacit.__version__}


# The first words of a line in the README's table, and the row of benchmarks/families.toml that it shows.
ROWS = {
    "`fedavg+X`": "fedavg-fixmatch",
    "`fedprox+X`": "fedprox-fixmatch",
    "`scaffold+X`": "scaffold-fixmatch",
    "`server-only+X`": "server-only",
    "`fedmatch`": "fedmatch",
    "`fedsem`": "fedsem",
    "`fedsiam-pi`": "fedsiam-mt",
    "`fedseal`": "fedseal",
    "`ssfl`": "fedrgd",
    "`semifl`": "semifl",
    "`moon+X`": "moon-fixmatch",
    "`fedmix`": "fedmix",
}


def accuracy(column: str, row: str | None) -> str:
    """The stored accuracy of a row, as the README writes it."""
    cells = json.loads((ROOT / "benchmarks" / "results" / "families.json").read_text(encoding="utf-8"))["cells"]
    return f"{100 * cells[column][row]['seeds']['0']['last5']:.1f}" if row in cells[column] else "–"


def test_the_readme_has_the_stored_accuracy_of_every_method() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (`.*) \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
    assert len(lines) == len(ROWS) + 3  # three have no row: local-only, anchor, and easgd with overlap-sgd
    for begins, client, server in lines:
        row = ROWS.get(begins.split("|")[0].split(",")[0].strip())
        assert (client, server) == (accuracy("client", row), accuracy("server", row)), begins
    alone, bounds = (
        (accuracy("client", "fedavg"), accuracy("server", "server-only")),
        [accuracy(c, "all-labels") for c in ("client", "server")],
    )
    assert f"reach {alone[0]} at the clients and {alone[1]} at the server" in text
    assert f"all labels {bounds[0]}\nand {bounds[1]}" in text


def test_the_trial_in_the_deployment_page_has_one_client_per_site() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (trial,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    config = configs.from_options({}, tomllib.loads(trial))
    assert config.data.clients == len(["north", "south", "east"])


def test_every_speed_ratio_in_the_docs_was_measured() -> None:
    printed = json.loads((ROOT / "benchmarks" / "results" / "ratios.json").read_text(encoding="utf-8"))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    quoted = [re.findall(r"`(\w[^=`\n]*?) ratio=([^`\n]*)`", page.read_text(encoding="utf-8")) for page in pages]
    assert dict(quoted[0]) == printed, "the README has them all"
    for found in quoted:
        assert dict(found).items() <= printed.items()


def test_the_table_of_cached_views_is_that_of_the_stored_results() -> None:
    script = run_path(str(ROOT / "benchmarks" / "views_cached.py"))
    page = (ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8")
    assert script["filled"](page) == page
    typed = page.replace("<!-- end views cached -->", "| 2 | 99.9 ± 0.1 | 5 | 1 |\n<!-- end views cached -->")
    assert script["filled"](typed) == page, "a row that no run gave goes away"
