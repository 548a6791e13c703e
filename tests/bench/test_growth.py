"""The benchmark of growth: its points, their limits, and the page that shows them."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def growth() -> ModuleType:
    spec = importlib.util.spec_from_file_location("growth", ROOT / "benchmarks" / "growth.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_point_differs_from_the_base_in_one_number(growth: ModuleType) -> None:
    names = [name for name, _ in growth.points()]
    assert len(set(names)) == len(names) == sum(map(len, growth.AXES.values()))
    for name, point in growth.points():
        axis, value = name.split()
        assert point[axis] == int(value)
        assert point["clients"] >= point["cohort"]


@pytest.mark.parametrize("parameters", [10**4, 10**6])
def test_the_network_has_about_the_parameters_asked_for(growth: ModuleType, parameters: int) -> None:
    net = growth.job_of(growth.BASE | {"parameters": parameters}).net
    assert net.size() == pytest.approx(parameters, rel=0.02)


def test_a_point_beyond_its_limits_is_a_result_too(growth: ModuleType) -> None:
    assert growth.measured_apart(growth.BASE, seconds=0.01, megabytes=8000) == {"failed": "not done in 0 s"}


def test_the_table_has_a_row_for_every_stored_point(growth: ModuleType) -> None:
    found = {"clients 100": {"rounds_per_hour": 1234.5, "peak_mb": 99.6}, "cohort 10": {"failed": "not done in 9 s"}}
    rows = growth.table(found).splitlines()[4:]
    assert rows == [
        "| clients | 100 | 1,234 | 100 MB |",
        "| clients per round | 10 | not done in 9 s | – |",
    ]


def test_the_page_shows_the_stored_results(growth: ModuleType) -> None:
    page = growth.PAGE.read_text(encoding="utf-8")
    if not growth.STORED.exists():
        assert "growth-clients.png" not in page
        return
    found = json.loads(growth.STORED.read_text(encoding="utf-8"))
    assert growth.filled(page, growth.section(found)) == page
    for axis in growth.AXES:
        assert (ROOT / "docs" / f"growth-{axis}.png").is_file()
