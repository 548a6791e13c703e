"""Settings as fields of dataclasses: checked against their types, and listed with their comments."""

from dataclasses import dataclass, fields
from typing import Any

import pytest

from tacit.data.split.config import DataConfig
from tacit.deploy.settings import Hub, Site
from tacit.engines.faults import Faults
from tacit.method import Training, Variant
from tacit.objectives import OBJECTIVES
from tacit.protect.config import Protection
from tacit.runs import registry
from tacit.runs.net.config import NetConfig
from tacit.runs.sections import EngineConfig, LogConfig, TrackConfig
from tacit.runs.settings import check
from tacit.runs.settings import settings as fields_of
from tests.refusals import refused

SETTINGS = [Training, DataConfig, NetConfig, EngineConfig, LogConfig, TrackConfig, Faults, Protection]


@pytest.mark.parametrize("kind", [*SETTINGS, *registry.methods().values(), *OBJECTIVES.values()])
def test_every_setting_has_a_comment_in_the_source(kind: type | Variant) -> None:
    variant = Variant.of(kind)
    found = registry.settings_of(kind)
    own = [item for item in fields(variant.kind) if item.name not in variant.without]
    inherited = [item.name for item in own if item.kw_only]  # shared with other classes, listed last
    assert [item.name for item in found] == [*(item.name for item in own if not item.kw_only), *inherited]
    for item in found:
        assert len(item.comment) > 3, f"{variant.kind.__name__}.{item.name} has no comment"
    assert registry.sentence(kind).endswith((".", "…"))


def test_settings_are_found_with_default_and_comment() -> None:
    lr = next(item for item in fields_of(Training) if item.name == "lr")
    assert (lr.default, lr.comment) == (0.01, "learning rate at the start")


@dataclass(frozen=True)
class Parent:
    """A class with settings."""

    inherited: int = 1  # comment of the parent
    changed: int = 2  # comment of the parent
    silent: int = 3  # comment of the parent


@dataclass(frozen=True)
class Child(Parent):
    """It has the parent's settings, one of them with another comment, and one more."""

    changed: int = 20  # comment of the child
    silent: int = 30
    added: int = 40  # comment of the child


def test_settings_of_a_subclass_include_inherited_ones_with_their_comments() -> None:
    found = [(item.name, item.default, item.comment) for item in fields_of(Child)]
    assert found == [
        ("inherited", 1, "comment of the parent"),
        ("changed", 20, "comment of the child"),
        ("silent", 30, "comment of the parent"),
        ("added", 40, "comment of the child"),
    ]
    assert [item.default for item in fields_of(Parent)] == [1, 2, 3]


def test_variants_of_a_method_explain_a_setting_alike() -> None:
    kinds = (registry.methods()[name] for name in ("fedsiam-d", "fedsiam-pi"))
    whole, basis = ({item.name: item for item in registry.settings_of(kind)} for kind in kinds)
    assert basis.items() < whole.items()
    assert whole["mu"].comment.startswith("μ")


def test_the_error_for_a_setting_outside_of_a_section_names_its_class() -> None:
    with refused("names.unknown-setting") as caught:
        check(Site, {"nme": "north"}, "")
    assert caught.error.problem == "unknown setting in site 'nme'"


@pytest.mark.parametrize(
    "values, remedy",
    [
        ({"name": "a b"}, "it must be 1 to 64 plain letters, digits, '.', '_' and '-'"),
        ({"host": "a_b"}, "it must be an IP address, or a name of plain letters"),
        ({"listen": "a_b"}, "it must be an IP address"),
        ({"sites": ["a", "b c"]}, "each name in it must be 1 to 64"),
    ],
)
def test_the_error_for_a_name_of_the_wrong_form_describes_the_form(values: dict[str, Any], remedy: str) -> None:
    with refused("settings.impossible-value") as caught:
        check(Site if "name" in values else Hub, values, "")
    assert caught.error.remedy.startswith(remedy)
