"""What a person does with a hub: start it, add a site, play a run, look how it stands."""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tacit import config as configs
from tacit.catalog import check
from tacit.deploy import apps, programs
from tacit.deploy.files import OPEN, Tail, write_new
from tacit.deploy.folder import CONNECTION, HubFolder
from tacit.deploy.hub import Sites
from tacit.deploy.settings import Site
from tacit.engines import checkpoint
from tacit.errors import TacitError
from tacit.folders import being_played

Say = Callable[[str], None]


@contextmanager
def serving(folder: HubFolder) -> Iterator[programs.Program]:
    """The hub while the block runs: its SuperLink answers, and knows the key of every site."""
    hub = folder.hub
    if not programs.free(hub.listen or hub.host, hub.port):
        raise TacitError(
            f"port {hub.port} of {hub.listen or hub.host} can not be used: stop what uses it, "
            f"or set another host, listen or port in {folder.file}"
        )
    folder.connect()
    apps.write(folder.app, folder.folder)
    with programs.running(folder.superlink(), folder.home, folder.home / "superlink.log") as superlink:
        programs.wait_until_healthy(superlink, folder.address, folder.authority)
        if not hub.insecure:
            reconcile(folder)
        yield superlink


def add(folder: HubFolder, name: str, key: Path) -> bool:
    """Let a site join by its public key; whether the hub, since it runs, knows already."""
    check(Site, {"name": name}, "site")
    text = _public_key(key)
    if folder.hub.insecure:
        raise TacitError(f"this hub has no keys: any site may join, since {folder.file} says insecure")
    held = {other: path.read_text(encoding="utf-8", errors="replace").split() for other, path in folder.keys.items()}
    same = [other for other, words in held.items() if words[1:2] == text.split()[1:2]]
    if same and same != [name]:
        raise TacitError(f"this is the key of {same[0]}: each site has its own, made by `tacit site init`")
    if name in folder.keys and not same:
        raise TacitError(
            f"{name} has another key already: if it is to be replaced, give `{folder.command(f'remove {name}')}` first"
        )
    if not same:
        write_new(folder.folder, {f"sites/{name}.pub": (text.encode(), OPEN)})
    running = folder.running()
    if running:
        reconcile(folder)
    return running


def remove(folder: HubFolder, name: str) -> bool:
    """Let a site no longer join; whether the hub, since it runs, knows already."""
    if name not in folder.keys:
        known = ", ".join(folder.keys) or "none"
        raise TacitError(f"no site {name} was added: name one of those that were ({known})")
    folder.keys[name].unlink()
    running = folder.running()
    if running:
        reconcile(folder)
    return running


def _public_key(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"can not read {path}: give the file that ends in .pub, made by `tacit site init`") from error
    if not re.fullmatch(r"ecdsa-sha2-nistp\d+ [A-Za-z0-9+/=]+( .*)?\s*", text):
        raise TacitError(
            f"{path} is no public key of a site: give the file that ends in .pub, made by `tacit site init`"
        )
    return text


def reconcile(folder: HubFolder) -> None:
    """Have the SuperLink accept the keys in the hub's folder and no others, and remember which node has which.

    A key that was removed or replaced there is no longer let in. Of several who do this one waits for the other.
    """
    with folder.alone():
        accepted = folder.accepted()
        wanted = {name: _public_key(path) for name, path in folder.keys.items()}
        for node, (name, key) in list(accepted.items()):
            if wanted.get(name) != key:
                programs.call("flwr", ["supernode", "unregister", str(node), CONNECTION], folder.home)
                del accepted[node]
                folder.accept(accepted)
        for name in wanted.keys() - {name for name, _ in accepted.values()}:
            accepted[_register(folder, name)] = name, wanted[name]
            folder.accept(accepted)


def _register(folder: HubFolder, name: str) -> int:
    words = ["supernode", "register", str(folder.keys[name]), CONNECTION, "--name", name, "--format", "json"]
    try:
        return int(str(_json(programs.call("flwr", words, folder.home))["node-id"]))
    except TacitError as error:
        if "already in use" not in str(error):
            raise
        # It was let in and removed, or the hub died before it could note that it was let in.
        if (node := registered(folder, folder.keys[name])) is not None:
            return node
        raise TacitError(
            f"Flower takes no key twice, and knows that of {name} from before: give {name} a new key, or {folder.anew}"
        ) from error


def registered(folder: HubFolder, key: Path) -> int | None:
    """The node that Flower lets in by a public key, from its database: its program lists nodes without their keys."""
    from cryptography.hazmat.primitives import serialization as forms

    form = forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo  # Flower's
    mine = forms.load_ssh_public_key(key.read_bytes()).public_bytes(*form)
    query = "SELECT node_id FROM node WHERE public_key = ? AND status != 'unregistered'"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{folder.database.as_uri()}?mode=ro", uri=True)) as database:
        found = database.execute(query, [mine]).fetchone()
        return int(found[0]) % 2**64 if found else None  # the database has no number without a sign
    return None


def _json(text: str) -> dict[str, object]:
    """The JSON at the end of what one of Flower's programs says; it may say other things first.

    With JSON asked for, a program that fails says so in it and ends as if all were well.
    """
    try:
        found: dict[str, object] = json.loads(text[text.index("{") :])
    except ValueError as error:
        said = programs.last_words(text) or "nothing"
        raise TacitError(
            f"Flower's answer is not understood ({said}): install the version that tacit[flower] asks for"
        ) from error
    if found.get("success") is False:
        why = programs.last_words(str(found.get("error-message")), 2)
        raise TacitError(f"Flower refuses: {why}; mend that and try again")
    return found


def play(folder: HubFolder, run: Path, say: Say) -> None:
    """Have the hub play a run, and pass on what it says until it is over; stopping this stops the run."""
    folder.need_running()
    run = run.absolute()
    apps.write(folder.app, folder.folder)
    (run / "error.txt").unlink(missing_ok=True)
    progress = Tail(run / "progress.log")
    settings = f'hub="{folder.folder}" run="{run}"'
    words = [programs.find("flwr"), "run", str(folder.app), CONNECTION, "--stream", "--run-config", settings]
    with programs.running(words, folder.home, run / "flower.log") as stream:
        try:
            while stream.ended() is None:
                _pass_on(progress, say)
                time.sleep(0.2)
        except KeyboardInterrupt:
            _stop(folder, stream.said())
            raise
        _pass_on(progress, say)
        _judge(folder, run, stream)


def _pass_on(progress: Tail, say: Say) -> None:
    for line in progress.lines():
        say(line)


def _stop(folder: HubFolder, said: str) -> None:
    if found := re.search(r"started run (\d+)", said):
        programs.call("flwr", ["stop", found.group(1), CONNECTION], folder.home)


def _judge(folder: HubFolder, run: Path, stream: programs.Program) -> None:
    """Say why a run did not come to its end."""
    again = f"go on with `{folder.command(f'resume {run.name}')}`"
    if (run / "error.txt").exists():
        reason = (run / "error.txt").read_text(encoding="utf-8")
        raise TacitError(f"{reason}; {again}" if "resume" in reason else reason)
    standing = stand(run)
    if standing.done < standing.rounds:
        raise TacitError(
            f"the run ended after round {standing.done} of {standing.rounds} ({programs.last_words(stream.said())}): "
            f"see {stream.log}, then {again}"
        )


@dataclass(frozen=True)
class Standing:
    """How far a run is."""

    name: str
    done: int
    rounds: int
    playing: bool
    sites: list[str]  # none before the first round
    trouble: str = ""  # why nothing else is known of it


def stand(run: Path) -> Standing:
    """How far the run in a folder is."""
    rounds = configs.read(run / "config.toml").get("rounds", 0)
    if not isinstance(rounds, int):
        raise TacitError(f"{run / 'config.toml'} says rounds = {rounds!r}: write a number there")
    sites = Sites.read(run)
    done = checkpoint.finished_rounds(run / "checkpoint")
    return Standing(run.name, done, rounds, being_played(run), sites.names if sites else [])


def runs(folder: HubFolder) -> list[Standing]:
    """All runs of a hub, the last one that was started first; one that is broken does not hide the others."""
    found = sorted(folder.runs.glob("*/config.toml"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [_stand_or_not(path.parent) for path in found]


def _stand_or_not(run: Path) -> Standing:
    try:
        return stand(run)
    except (TacitError, OSError) as error:
        return Standing(run.name, 0, 0, playing=False, sites=[], trouble=str(error))


def find_run(folder: HubFolder, name: str) -> Path:
    """A run by its name, or by its folder."""
    for run in (folder.runs / name, Path(name)):
        if (run / "config.toml").exists():
            return run.absolute()
    known = ", ".join(standing.name for standing in runs(folder)[:5])
    raise TacitError(f"there is no run {name} in {folder.runs}: {f'there are {known}' if known else 'start one first'}")


def connected(folder: HubFolder) -> dict[str, str]:
    """What Flower says of each node, such as online, by the name of its site where that is known."""
    told = _json(programs.call("flwr", ["supernode", "list", CONNECTION, "--format", "json"], folder.home))
    names, nodes = folder.nodes(), told["nodes"]
    assert isinstance(nodes, list)
    return {names.get(int(node["node-id"]), f"node {node['node-id']}"): str(node["status"]) for node in nodes}
