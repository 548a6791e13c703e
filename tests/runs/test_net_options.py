"""`[net.options]`: checked against the factory of a network, handed to it, and part of what identifies a run."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tacit.bench import identity
from tacit.errors import TacitError
from tacit.runs.build import build_job
from tacit.runs.config import dumps, from_options, make, read
from tests.refusals import refused

SMALL: dict[str, Any] = {"data": "fashion-small", "labels": "all", "clients": 2, "rounds": 1}


@pytest.fixture(autouse=True)
def own_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_nets.py").write_text(
        dedent(
            """
            from torch import nn

            def make(shape, classes, hidden: int = 8, dropout: float = 0.0, sizes: tuple[int, ...] = (), layers=[]):
                assert isinstance(sizes, tuple)
                layers = nn.Linear(784, hidden), nn.Dropout(dropout), nn.Linear(hidden, classes)
                return nn.Sequential(nn.Flatten(), *layers)

            def strict(shape, classes, *, rank: int):
                return make(shape, classes, hidden=rank)

            def anything(shape, classes, **options):
                return make(shape, classes, **options)

            class Net(nn.Sequential):
                def __init__(self, shape, classes, hidden: int = 8):
                    super().__init__(nn.Flatten(), nn.Linear(784, hidden), nn.Linear(hidden, classes))
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_nets", None)


@pytest.mark.parametrize("name", ["make", "anything", "Net"])
def test_options_reach_the_factory(name: str) -> None:
    config = from_options(SMALL | {"net": f"my_nets:{name}", "net.options.hidden": 5})
    assert build_job(config)[0].net.size() == 784 * 5 + 5 + 5 * 10 + 10


def test_options_in_a_section_by_dotted_names_and_together() -> None:
    base = {"net": {"name": "my_nets:make", "options": {"hidden": 5, "dropout": 0.5}}}
    assert make(base).net.options == {"hidden": 5, "dropout": 0.5}
    over = from_options({"net.options.hidden": 6}, base)
    assert over.net.options == {"hidden": 6, "dropout": 0.5}
    assert from_options({"net.options": {"hidden": 6}}, base) == over
    assert from_options({"net": {"options": {"hidden": 6}}}, base) == over
    assert base["net"]["options"] == {"hidden": 5, "dropout": 0.5}


def test_a_config_with_options_survives_its_file(tmp_path: Path) -> None:
    config = make({"net": {"name": "my_nets:make", "options": {"hidden": "5", "sizes": [1, 2]}}})
    assert config.net.options == {"hidden": 5, "sizes": [1, 2]}
    (tmp_path / "config.toml").write_text(dumps(config))
    assert make(read(tmp_path / "config.toml")) == config


@pytest.mark.parametrize(
    "name, options, code",
    [
        ("my_nets:make", {"hiden": 5}, "names.unknown-setting"),
        ("my_nets:make", {"shape": [1]}, "names.unknown-setting"),
        ("my_nets:make", {"hidden": "many"}, "settings.impossible-value"),
        ("my_nets:make", {"hidden": 1.5}, "settings.impossible-value"),
        ("my_nets:Net", {"hidden": "many"}, "settings.impossible-value"),
        ("my_nets:anything", {"a-b": 1}, "settings.none"),
        ("my_nets:strict", {}, "settings.no-default"),
        ("lenet", {"hidden": 5}, "settings.none"),
        ("lenet", {"width": 2}, "settings.none"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], code: str) -> None:
    with refused(code):
        make({"net": {"name": name, "options": options}})


def test_the_error_for_a_misspelled_option_suggests_the_closest_one() -> None:
    with pytest.raises(TacitError) as caught:
        from_options({"net": "my_nets:make", "net.options.hiden": 5})
    expected = "unknown setting in net.options 'hiden'; did you mean 'hidden'?"
    assert str(caught.value).startswith(expected)


def test_options_are_part_of_what_identifies_a_run() -> None:
    one, same, two = (
        from_options(SMALL | {"net": "my_nets:make", "net.options.hidden": hidden}) for hidden in (5, 5, 6)
    )
    assert one.fingerprints() == same.fingerprints() != two.fingerprints()
    assert identity.fingerprint(one) == identity.fingerprint(same) != identity.fingerprint(two)
    assert identity.settings(one)["net.options.hidden"] == 5
