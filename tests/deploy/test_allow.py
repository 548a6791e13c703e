"""A site imports code outside Tacit only if its own settings allow that name."""

import sys
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit import user_code
from tacit.deploy import supernode
from tacit.deploy.check import check
from tacit.deploy.site import introduce, open_workspace
from tests.deploy import places
from tests.refusals import refused

pytestmark = pytest.mark.flower

MODULE = "code_of_a_hub"
NET = """\
import math

from torch import nn


def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
"""


@pytest.fixture
def about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a hub says about a run with a network of its own, which this machine has too."""
    (tmp_path / f"{MODULE}.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    config = places.hub_config(tmp_path, partition="iid", labels="all", net=f"{MODULE}:net", **{"net.width": 1.0})
    about = places.run_info(config)
    monkeypatch.delitem(sys.modules, MODULE)
    return about


def test_a_name_that_is_not_allowed_is_not_imported(about: dict[str, str], tmp_path: Path) -> None:
    for allow in ([], [f"{MODULE}:other"], [MODULE]):
        node = places.trial(places.site(tmp_path, "a", allow=allow))
        assert "user.not-allowed" in introduce(about, node).refusal
        with refused("user.not-allowed"):
            open_workspace(about, node, 0)
        assert MODULE not in sys.modules


def test_a_name_that_is_allowed_is_used(about: dict[str, str], tmp_path: Path) -> None:
    node = places.trial(places.site(tmp_path, "a", allow=[f"{MODULE}:net"]))
    assert introduce(about, node).refusal == ""
    assert MODULE in sys.modules


@pytest.mark.parametrize("section", ["net", "method", "objective"])
def test_the_hubs_federation_file_imports_nothing(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither `tacit site check` nor `tacit site join` does."""
    (tmp_path / f"{MODULE}.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    path = places.site(tmp_path, "a")
    name = (
        {"method": {"name": f"fedavg+{MODULE}:net"}} if section == "objective" else {section: {"name": f"{MODULE}:net"}}
    )
    tree = {"description": {"classes": ["a", "b"]}, "config": name}
    (path.parent / "federation.toml").write_text(tomli_w.dumps(tree))
    with refused("user.not-allowed"):
        check(path)
    with refused("user.not-allowed"):
        supernode.join(path, "127.0.0.1:1", lambda text: None)
    assert MODULE not in sys.modules


def test_the_limit_ends_with_its_block() -> None:
    with user_code.only(["json:loads"]):
        assert user_code.load("network", "json:loads") is not None
        with refused("user.not-allowed"):
            user_code.load("network", "json:dumps")
    assert user_code.load("network", "json:dumps") is not None
