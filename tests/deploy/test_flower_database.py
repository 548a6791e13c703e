"""Nodes in a database that Flower itself writes."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import flower_database, site_init

pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of libraries below Flower


@pytest.fixture
def state(tmp_path: Path) -> Any:
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    database = str(tmp_path / "state.db")
    return LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()


def register(state: Any, key: Path) -> int:
    from flwr.cli.supernode.register import try_load_public_key

    node: int = state.create_node("me", "me", try_load_public_key(key), 30)
    return node


def keys(folder: Path, *names: str) -> dict[str, Path]:
    found = {name: folder / f"{name}.pub" for name in names}
    for name, key in found.items():
        key.write_bytes(site_init.create_key_pair(name)[1])
    return found


def test_a_node_is_found_by_its_key_while_it_is_registered(state: Any, tmp_path: Path) -> None:
    public, database = keys(tmp_path, "north", "south", "west"), tmp_path / "state.db"
    nodes = {name: register(state, public[name]) for name in ("north", "south")}
    state.delete_node("me", nodes["north"])
    found = {name: flower_database.find_node(database, key) for name, key in public.items()}
    assert found == {"north": None, "south": nodes["south"], "west": None}
    assert flower_database.find_node(tmp_path / "none.db", public["north"]) is None


def test_a_node_is_connected_until_its_heartbeat_is_missed(state: Any, tmp_path: Path) -> None:
    public = keys(tmp_path, "north", "south", "west")
    nodes = {name: register(state, key) for name, key in public.items()}
    state.activate_node(nodes["north"], 1e6)
    state.activate_node(nodes["south"], -1.0)  # as long ago
    found = {node.id: node.connected for node in flower_database.nodes(tmp_path / "state.db")}
    assert found == {nodes["north"]: True, nodes["south"]: False, nodes["west"]: False}


def test_the_key_of_a_removed_node_can_be_registered_again(state: Any, tmp_path: Path) -> None:
    public, database = keys(tmp_path, "north", "south"), tmp_path / "state.db"
    north, south = (register(state, public[name]) for name in ("north", "south"))
    state.delete_node("me", north)
    with pytest.raises(ValueError, match="in use"):
        register(state, public["north"])
    assert flower_database.release_key(database, public["north"])
    again = register(state, public["north"])
    assert flower_database.find_node(database, public["north"]) == again != north
    assert not flower_database.release_key(database, public["south"])  # of a node that is accepted
    assert flower_database.find_node(database, public["south"]) == south
