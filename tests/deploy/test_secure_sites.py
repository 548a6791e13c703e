"""Secure aggregation over sites, without processes: whose keys a site accepts, what it answers once, who may leave."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy import journal
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.identity import fingerprint, numbered
from tacit.deploy.settings import Hub
from tacit.engines.client import run_client
from tacit.engines.in_process import InProcessTransport
from tacit.engines.job import ClientFailure, ClientNews, ClientTask, Job
from tacit.engines.rounds import TooFewClientsError
from tacit.engines.secure_messages import KeysDown, KeysUp, MaskDown, RevealDown, SharesDown
from tacit.engines.secure_peers import Peers
from tacit.params import Params
from tacit.runs.build import build_job
from tacit.runs.config import Config
from tests.deploy import places
from tests.refusals import refused

pytest.importorskip("flwr", reason="Flower is not installed: pip install tacit[flower]")

from tacit.deploy import hub as hubs
from tacit.deploy import hub_sites
from tacit.deploy.site import SiteSafeguards, introduce, open_workspace
from tacit.engines.flower import ClientNodes, FlowerTransport, GridClient, client_app
from tests.engines.grid import DirectGrid, played

pytestmark = pytest.mark.flower

NAMES = ("a", "b", "c", "d", "e")
SECURE: dict[str, Any] = {"method": "fedavg+supervised", "partition": "iid", "labels": "all", "rounds": 2}


class LossyTransport(FlowerTransport):
    """Loses the answers of some clients to some kinds of messages, after the sites have given them."""

    lost: Mapping[type, tuple[int, ...]] = {}

    def run(self, round: int, tasks: Mapping[int, ClientTask]) -> Generator[ClientNews]:
        for item in super().run(round, tasks):
            if isinstance(item, tuple) and item[0] in self.lost.get(type(tasks[item[0]].down), ()):
                yield item[0], ClientFailure("client.gone", "is gone")
            else:
                yield item


@dataclass
class Sites:
    """Sites with keys that have agreed to a run, and the hub's view of it."""

    config: Config
    paths: dict[str, Path]
    keys: dict[str, str]
    run: str = "run-1"

    @property
    def folder(self) -> Path:
        return next(iter(self.paths.values())).parent.parent

    @property
    def job(self) -> Job:
        """The hub's job."""
        return replace(build_job(self.config)[0], peers=Peers(self.run, numbered(self.keys)))

    def transport(self, lost: Mapping[type, tuple[int, ...]] | None = None) -> LossyTransport:
        nodes = [places.member(path) for path in self.paths.values()]
        grid = DirectGrid(client_app(open_workspace, introduce, SiteSafeguards()), nodes)
        numbers = {name: number for number, name in enumerate(sorted(self.paths))}
        known = ClientNodes(GridClient(grid), places.run_info(self.config, self.run), numbers)
        made = LossyTransport(self.job, known)
        made.lost = lost or {}
        return made

    def play(self, lost: Mapping[type, tuple[int, ...]] | None = None) -> tuple[Params, list[Any]]:
        """The final model and the records."""
        job = self.job
        state, records, _ = played(job, self.transport(lost), self.folder / "memories")
        return model_of(job, state), records

    def plain(self, without: tuple[int, ...] = ()) -> Params:
        """The final model of an ordinary run on one machine."""
        job = build_job(replace(self.config, protect=replace(self.config.protect, secure=False)))[0]
        job = replace(job, left_out=dict.fromkeys(without, 0))
        return model_of(job, played(job, InProcessTransport(job), self.folder / "plain")[0])

    def at(self, name: str) -> Job:
        """The job as a site sees it."""
        number = sorted(self.paths).index(name)
        return open_workspace(places.run_info(self.config, self.run), places.member(self.paths[name]), number).job


def model_of(job: Job, state: bytes) -> Params:
    found = job.method.model(job.codec.decode(state))
    assert found is not None
    return found


def sites(folder: Path, names: tuple[str, ...] = NAMES[:3], **options: Any) -> Sites:
    folder.mkdir(exist_ok=True)
    config = places.hub_config(folder, clients=len(names), **SECURE | {"protect.secure": True} | options)
    made = {name: places.site_with_key(folder, name) for name in names}
    keys = {name: key for name, (_, key) in made.items()}
    return Sites(config, {name: places.agree(path, config, keys) for name, (path, _) in made.items()}, keys)


def near(first: Params, second: Params) -> None:
    # The mean differs by at most K·2^-25 / Σn in a round; the second round trains on what float32 makes of it.
    assert first.keys() == second.keys()
    for name in first:
        assert float((first[name] - second[name]).abs().max()) < 1e-5, name


@pytest.mark.parametrize("method", ["fedavg+supervised", "fedprox+supervised", "moon+supervised"])
def test_three_sites_give_the_model_of_a_plain_run(method: str, tmp_path: Path) -> None:
    made = sites(tmp_path, method=method)
    model, records = made.play()
    near(model, made.plain())
    assert [record.clients for record in records] == [3, 3]
    assert not any(record.skipped for record in records)


@pytest.mark.parametrize("stage", [KeysDown, SharesDown, MaskDown])
def test_a_site_that_vanishes_in_the_middle_is_left_out(stage: type, tmp_path: Path) -> None:
    made = sites(tmp_path, NAMES, rounds=1)
    model, records = made.play({stage: (3,)})
    near(model, made.plain(without=(3,)))
    assert list(records[0].skipped) == [3]


def test_a_site_that_vanishes_after_its_upload_counts(tmp_path: Path) -> None:
    made = sites(tmp_path, NAMES, rounds=1)
    model, records = made.play({RevealDown: (3,)})
    near(model, made.plain())
    assert records[0].clients == 5


def test_a_run_that_lost_its_hub_in_a_round_plays_it_again(tmp_path: Path) -> None:
    made = sites(tmp_path, NAMES, rounds=1)
    with pytest.raises(TooFewClientsError):
        made.play({RevealDown: (0, 1, 2)})  # 3 and 4 have opened the sum of all five
    with pytest.raises(TooFewClientsError):
        made.play({MaskDown: (2,)})  # and do not open that of four
    model, _ = made.play()
    near(model, made.plain())


def test_the_journal_has_every_exchange_and_counts_one_update_a_round(tmp_path: Path) -> None:
    made = sites(tmp_path)
    made.play()
    found = journal.read(made.paths["b"].parent)
    kinds = ["introduction", *("exchange", "exchange", "update", "exchange") * 2]
    assert [entry.kind for entry in found.entries] == kinds
    assert [entry.fields for entry in found.entries[1:5]] == [
        ("public keys of this round, signed",),
        ("encrypted shares for 2 others",),
        ("update behind masks", "steps"),
        ("shares of the own mask of 3 clients",),
    ]
    assert len(found.spent()) == 2
    shown = CliRunner().invoke(app, ["site", "journal", str(made.paths["b"])], env={"COLUMNS": "200"})
    assert "sent encrypted shares for 2 others" in shown.output


def test_sample_noise_at_sites_is_accounted_for_once_a_round(tmp_path: Path) -> None:
    noise: dict[str, Any] = {"protect.sample_noise": 1.5}
    made = sites(tmp_path, **noise)
    _, records = made.play()
    steps = [spent.steps for spent in journal.read(made.paths["a"].parent).spent()]
    assert len(steps) == 2
    assert records[-1].sample_privacy["epsilon"] < 100


# --- a hub that means harm --------------------------------------------------------------------------------------------


class Harm:
    """The exchanges of one round by hand, with what a hub could change."""

    def __init__(self, made: Sites) -> None:
        self.jobs = {number: made.at(name) for number, name in enumerate(sorted(made.paths))}
        self.session = made.job.peers.new_session(0) if made.job.peers else ""
        self.down = build_job(made.config)[0]

    def ask(self, client: int, down: object) -> Any:
        return run_client(self.jobs[client], 0, client, ClientTask(down, None)).up

    def keys(self, session: str | None = None) -> dict[int, KeysUp]:
        return {k: self.ask(k, KeysDown(session or self.session)) for k in self.jobs}

    def shares(self) -> dict[int, dict[int, str]]:
        keys = self.keys()
        return {k: self.ask(k, SharesDown(keys)).sealed for k in self.jobs}

    def message(self, shares: dict[int, dict[int, str]], client: int) -> MaskDown:
        method, server = self.down.method, self.down.server(0, {})
        _, downs = method.send(server, method.start(server))
        return MaskDown(downs[client], {peer: each[client] for peer, each in shares.items() if peer != client})

    def masked(self) -> None:
        shares = self.shares()
        for k in self.jobs:
            self.ask(k, self.message(shares, k))


def test_a_site_refuses_keys_that_are_not_pinned(tmp_path: Path) -> None:
    """The hub takes the place of a site with keys of its own, signed with its own key."""
    made = sites(tmp_path)
    harm, other = Harm(made), Harm(sites(tmp_path / "hub's own"))
    keys = harm.keys()
    forged = other.ask(2, KeysDown(other.session))
    with refused("secure.forged-key"):
        harm.ask(0, SharesDown({**keys, 2: forged}))
    stranger = sites(tmp_path / "one more", NAMES)
    extra = Harm(stranger).ask(4, KeysDown(Harm(stranger).session))
    with refused("secure.forged-key"):
        harm.ask(1, SharesDown({**keys, 4: extra}))


def test_keys_of_another_round_or_client_are_refused(tmp_path: Path) -> None:
    harm = Harm(sites(tmp_path))
    old = harm.keys()
    harm.session = harm.session.rpartition("|")[0] + "|next"
    keys = harm.keys()
    with refused("secure.forged-key"):
        harm.ask(0, SharesDown({**keys, 2: old[2]}))
    with refused("secure.forged-key"):
        harm.ask(1, SharesDown({0: keys[2], 1: keys[1], 2: keys[0]}))


def test_a_site_takes_no_part_below_the_threshold(tmp_path: Path) -> None:
    harm = Harm(sites(tmp_path, NAMES))
    keys = harm.keys()
    with refused("secure.too-few"):
        harm.ask(0, SharesDown({k: keys[k] for k in (0, 1, 2)}))  # three are enough for three sites, not for five
    harm = Harm(sites(tmp_path / "again", NAMES))
    shares = harm.shares()
    with refused("secure.too-few"):
        harm.ask(0, harm.message({k: shares[k] for k in (0, 1, 2)}, 0))
    harm = Harm(sites(tmp_path / "once more", NAMES))
    harm.masked()
    with refused("secure.too-few"):
        harm.ask(0, RevealDown((0, 1, 2)))


def test_a_site_answers_no_step_twice(tmp_path: Path) -> None:
    harm = Harm(sites(tmp_path))
    keys = harm.keys()
    with refused("secure.session-repeated"):
        harm.ask(0, KeysDown(harm.session))
    shares = {k: harm.ask(k, SharesDown(keys)).sealed for k in harm.jobs}
    with refused("secure.step-repeated"):
        harm.ask(0, SharesDown(keys))
    for k in harm.jobs:
        harm.ask(k, harm.message(shares, k))
    with refused("secure.step-repeated"):
        harm.ask(0, harm.message(shares, 0))  # a second upload under the same masks
    assert {kind for kind, _ in harm.ask(0, RevealDown((0, 1, 2))).shares.values()} == {"own mask"}
    with refused("secure.step-repeated"):
        harm.ask(0, RevealDown((0, 1, 2)))


def test_a_site_never_reveals_both_secrets_of_a_peer(tmp_path: Path) -> None:
    harm = Harm(sites(tmp_path, NAMES))
    harm.masked()
    harm.ask(0, RevealDown((0, 1, 2, 3, 4)))
    with refused("secure.step-repeated"):
        harm.ask(0, RevealDown((0, 1, 2, 3)))  # would add the mask key of 4 to its own mask
    with refused("secure.not-counted"):
        harm.ask(4, RevealDown((0, 1, 2, 3)))


def test_a_session_for_another_run_is_refused(tmp_path: Path) -> None:
    harm = Harm(sites(tmp_path))
    with refused("secure.other-session"):
        harm.ask(0, KeysDown("run-2|0|abc"))


# --- who takes part ---------------------------------------------------------------------------------------------------


def refusal(made: Sites, name: str = "a", *, any_run: bool = False) -> str:
    node = (places.trial if any_run else places.member)(made.paths[name])
    return introduce(places.run_info(made.config), node).refusal


def test_a_site_needs_the_keys_of_all_sites_and_its_own_among_them(tmp_path: Path) -> None:
    made = sites(tmp_path)
    assert not refusal(made)
    assert "--any-run" in refusal(made, any_run=True)
    places.agree(made.paths["a"], made.config)
    assert "federation.toml, and it has none" in refusal(made)
    places.agree(made.paths["a"], made.config, {"a": made.keys["a"], "b": made.keys["b"]})
    assert "keys of 2 sites, and the run has 3" in refusal(made)
    places.agree(made.paths["a"], made.config, made.keys | {"a": made.keys["b"]})
    assert "another key for a" in refusal(made)
    places.agree(made.paths["a"], made.config, made.keys | {"b": "ecdsa-sha2-nistp384 AAAA"})
    with refused("federation.broken-key"):
        made.at("a")


def test_a_site_without_a_key_takes_no_part(tmp_path: Path) -> None:
    made = sites(tmp_path)
    path = places.agree(places.site(tmp_path, "a"), made.config, made.keys)
    assert "signs with its own key" in refusal(replace(made, paths={"a": path}))


def test_a_site_keeps_the_number_that_follows_from_the_names(tmp_path: Path) -> None:
    made = sites(tmp_path)
    with refused("site.other-number"):
        open_workspace(places.run_info(made.config), places.member(made.paths["a"]), 1)


def test_new_keys_in_the_file_ask_for_another_check(tmp_path: Path) -> None:
    made = sites(tmp_path)
    other = places.site_with_key(tmp_path / "other", "b")[1]
    places.write_federation_file(made.paths["a"], made.config, made.keys | {"b": other})
    with refused("site.unchecked"):
        made.at("a")


def test_the_check_shows_what_is_hidden_and_whose_keys_to_compare(tmp_path: Path) -> None:
    made = sites(tmp_path)
    shown = CliRunner().invoke(app, ["site", "check", str(made.paths["a"])], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.exception
    assert "at least 3 sites in a round, and no single update" in shown.output
    for name, key in made.keys.items():
        assert f"{name}: {fingerprint(key)}" in shown.output
    assert "The upload as masked whole numbers" in shown.output
    assert "encrypted shares for the other sites" in shown.output


# --- at the hub -------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> HubDirectory:
    made = HubDirectory.create(tmp_path / "hub", Hub())
    for name in NAMES[:3]:
        _, key = places.site_with_key(tmp_path, name)
        (tmp_path / f"{name}.pub").write_text(f"{key} {name}\n")
        hub_sites.add_site(made, name, tmp_path / f"{name}.pub")
    return made


def planned(folder: Path, **more: Any) -> Path:
    places.hub_config(folder)
    data = {"name": str(folder / "hub.npz"), "labels": "all"}
    tree = {"data": data, "method": {"name": "fedavg+supervised"}, "protect": {"secure": True}, "rounds": 2} | more
    (folder / "run.toml").write_text(tomli_w.dumps(tree))
    return folder / "run.toml"


def test_the_hub_pins_the_keys_of_its_sites(hub: HubDirectory, tmp_path: Path) -> None:
    path = hubs.write_federation_file(hub, planned(tmp_path), {})
    site = places.site_with_key(tmp_path / "x", "a")[0]
    (site.parent / "federation.toml").write_bytes(path.read_bytes())
    assert "another key for a" in str(CliRunner().invoke(app, ["site", "check", str(site)]).exception)
    (tmp_path / "a" / "federation.toml").write_bytes(path.read_bytes())
    assert CliRunner().invoke(app, ["site", "check", str(tmp_path / "a")]).exit_code == 0
    plain = hubs.write_federation_file(hub, planned(tmp_path, protect={}), {})
    assert "[keys]" not in plain.read_text()


def test_the_hub_sets_no_limit_that_it_could_not_check(hub: HubDirectory, tmp_path: Path) -> None:
    assert hubs.load_config(hub, planned(tmp_path), {}).limits.norm_factor is None
    assert hubs.create_run(hub, planned(tmp_path), {}).is_dir()
    with refused("protect.secure-and-limits"):
        hubs.create_run(hub, planned(tmp_path, limits={"max_norm": 1.0}), {})


def test_a_hub_without_keys_cannot_hide_uploads(tmp_path: Path) -> None:
    made = HubDirectory.create(tmp_path / "hub", Hub(insecure=True))
    with refused("hub.no-site-keys"):
        hubs.load_config(made, planned(tmp_path), {})
