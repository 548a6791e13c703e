"""The sites of a hub: who may join, by which public key, and who is connected."""

import re
from pathlib import Path

from tacit.deploy import flower_cli, flower_database
from tacit.deploy.hub_directory import CONNECTION, HubDirectory
from tacit.deploy.settings import Site
from tacit.errors import TacitError
from tacit.runs.settings import check
from tacit.storage import OPEN, write_new

_KEY_REMEDY = "give the file that ends in .pub, made by `tacit site init`"


def add_site(hub: HubDirectory, name: str, key: Path) -> bool:
    """Let a site join by its public key; whether it may at once, since the hub runs."""
    check(Site, {"name": name}, "site")
    text = _read_public_key(key)
    if hub.settings.insecure:
        raise TacitError(
            "this hub uses no keys, so any site may join",
            f"remove `insecure` from {hub.settings_file} if it should use keys",
            code="hub.insecure",
        )
    stored = {
        other: path.read_text(encoding="utf-8", errors="replace").split() for other, path in hub.site_keys.items()
    }
    owners = [other for other, words in stored.items() if words[1:2] == text.split()[1:2]]
    if owners and owners != [name]:
        raise TacitError(
            f"this is the key of {owners[0]}", "create a key for each site with `tacit site init`", code="hub.key-taken"
        )
    if name in hub.site_keys and not owners:
        raise TacitError(
            f"{name} already has another key",
            f"run `{hub.command(f'remove {name}')}` first to replace it",
            code="hub.site-exists",
        )
    if not owners:
        write_new(hub.path, {f"sites/{name}.pub": (text.encode(), OPEN)})
    return _sync_if_running(hub)


def remove_site(hub: HubDirectory, name: str) -> bool:
    """Let a site no longer join; whether this takes effect at once, since the hub runs."""
    if name not in hub.site_keys:
        known = ", ".join(hub.site_keys)
        remedy = f"choose one of {known}" if known else "no site has been added yet"
        raise TacitError(f"there is no site {name}", remedy, code="hub.unknown-site")
    hub.site_keys[name].unlink()
    return _sync_if_running(hub)


def _sync_if_running(hub: HubDirectory) -> bool:
    running = hub.is_running()
    if running:
        sync_keys(hub)
    return running


def _read_public_key(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read {path}", _KEY_REMEDY, code="hub.unreadable-key") from error
    if not re.fullmatch(r"ecdsa-sha2-nistp\d+ [A-Za-z0-9+/=]+( .*)?\s*", text):
        raise TacitError(f"{path} is not the public key of a site", _KEY_REMEDY, code="hub.not-a-key")
    return text


def sync_keys(hub: HubDirectory) -> None:
    """Let the SuperLink accept the keys in the hub's folder and no others, and store which node has which.

    A key that was removed or replaced is no longer accepted. If two processes do this, one waits for the other.
    """
    with hub.nodes_locked():
        nodes = hub.registered_nodes()
        wanted = {name: _read_public_key(path) for name, path in hub.site_keys.items()}
        accepted = {node.id for node in flower_database.nodes(hub.database) if not node.removed}
        for node, (name, key) in list(nodes.items()):
            if wanted.get(name) != key or node not in accepted:
                if node in accepted:  # otherwise it was removed without our knowing
                    flower_cli.unregister_node(node, CONNECTION, hub.flower_home)
                del nodes[node]
                hub.write_registered_nodes(nodes)
        for name in wanted.keys() - {name for name, _ in nodes.values()}:
            nodes[_register(hub, name)] = name, wanted[name]
            hub.write_registered_nodes(nodes)


def _register(hub: HubDirectory, name: str) -> int:
    key = hub.site_keys[name]
    try:
        return flower_cli.register_node(key, name, CONNECTION, hub.flower_home)
    except flower_cli.KeyInUseError as error:
        # Either the hub was killed before it could store the registration, or the site was removed before.
        if (node := flower_database.find_node(hub.database, key)) is not None:
            return node
        if flower_database.release_key(hub.database, key):
            return flower_cli.register_node(key, name, CONNECTION, hub.flower_home)
        raise TacitError(
            f"Flower has already seen {name}'s key and rejects reused keys",
            f"give {name} a new key, or {hub.reset_remedy}",
            code="hub.key-used-before",
        ) from error


def site_states(hub: HubDirectory) -> dict[str, bool]:
    """Whether each node that Flower accepts is connected, by the name of its site where it is known."""
    names = hub.node_names()
    known = (node for node in flower_database.nodes(hub.database) if not node.removed)
    return {names.get(node.id, f"node {node.id}"): node.connected for node in known}
