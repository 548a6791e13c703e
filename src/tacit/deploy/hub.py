"""The hub's side of a run: wait for the sites, number them, and run the rounds."""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from tacit import __version__
from tacit.data.federate import federate
from tacit.data.split.split import Split
from tacit.deploy.federation_spec import FederationSpec, federation_toml
from tacit.deploy.hub_directory import INTRODUCTIONS, HubDirectory
from tacit.deploy.identity import numbered, plain
from tacit.engines.flower import SCHEMA, ClientNodes, FlowerTransport, GridClient, ask_for_scores
from tacit.engines.limits import FACTOR
from tacit.engines.memory import VERSION_BYTES
from tacit.engines.secure_peers import Peers
from tacit.errors import TacitError
from tacit.formatting import printable
from tacit.runs import config as configs
from tacit.runs.auto import AUTO, Declared
from tacit.runs.build import build_data, refuse_missing_labels
from tacit.runs.config import Config
from tacit.runs.directory import RunDirectory
from tacit.runs.directory.folders import fresh
from tacit.runs.experiment import Experiment
from tacit.runs.followers.progress import round_line, score_texts, skipped_lines
from tacit.runs.protection import protection_notes
from tacit.runs.resolve import resolve
from tacit.storage import DiskError, write_durably

POLL_SECONDS = 1.0  # between two checks of who has joined
IDENTIFY_SECONDS = 120.0  # a node may take this long to identify itself
DEADLINE = 3600.0  # seconds for a site's reply, if the config has none: a silent site does not stop the others for ever
NOTICE_SECONDS = 3.0  # before the hub says whom it waits for
Notify = Callable[[str], None]  # shows a line to a person
UNDECLARED = "not counted: a site says how many samples and labels it has when it joins a run"


@dataclass(frozen=True)
class Sites:
    """The sites of a run. A site's number is its position in the list, in every round and after every resume."""

    run: str  # the id under which the sites store their memory of the run
    names: list[str]

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each site."""
        return {name: number for number, name in enumerate(self.names)}

    @classmethod
    def read(cls, directory: RunDirectory) -> "Sites | None":
        """The sites of a run; None before its first round."""
        values = directory.sites()
        return None if values is None else cls(values["run"], values["names"])

    def write(self, directory: RunDirectory) -> None:
        """Fix the sites of a run."""
        directory.write_sites(asdict(self))


def declarations(hub: HubDirectory) -> dict[str, Declared]:
    """What each site that may take part said about its samples when it last joined a run of this hub."""
    expected, found = hub.expected_sites, dict[str, Declared]()
    notes = sorted(hub.runs_folder.glob(f"*/{INTRODUCTIONS}"), key=lambda path: path.stat().st_mtime)
    for path in notes:
        for name, said in (RunDirectory(path.parent).read_note(INTRODUCTIONS) or {}).items():
            if not said["refusal"] and said["samples"] and (expected is None or name in expected):
                found[name] = Declared(said["samples"], said["labeled"])
    return dict(sorted(found.items()))


def load_config(
    hub: HubDirectory, config: Path, changes: Mapping[str, Any], notify: Notify = lambda line: None
) -> Config:
    """A config with one client per site of the hub.

    `auto` decides by the hub's own data and by what the sites have declared, and `notify` gets its reasons. Sites only
    see what it decided.
    """
    tree, sites = configs.read(config), hub.expected_sites
    if sites and isinstance(tree.setdefault("data", {}), dict):
        tree["data"].setdefault("clients", len(sites))
    declared = declarations(hub)
    resolved = resolve(changes, tree, default=configs.DEFAULT_METHOD, sites=[*declared.values()])
    made = resolved.config
    for line in resolved.lines:
        notify(line)
    if resolved.name == AUTO and made.data.at_sites:
        missing = ", ".join(name for name in sites or () if name not in declared)
        if missing or not declared:
            notify(f"sites    {missing or 'all'}: {UNDECLARED}")
    if sites and made.data.clients != len(sites):
        raise TacitError(
            f"the config has {made.data.clients} clients and the hub {len(sites)} sites ({', '.join(sites)})",
            f"set data.clients = {len(sites)}",
            code="hub.wrong-client-count",
        )
    # client_clip bounds every update; with secure aggregation the hub sees none that it could measure
    bounded = made.limits.measures or made.protect.hides_clients or made.protect.secure
    limits = made.limits if bounded else replace(made.limits, norm_factor=FACTOR)
    engine = replace(made.engine, name="flower", deadline=made.engine.deadline or DEADLINE)
    if made.protect.secure:
        site_keys(hub, sites or [])
    return replace(made, engine=engine, limits=limits)


def site_keys(hub: HubDirectory, names: Iterable[str]) -> dict[str, str]:
    """The public keys of sites, by which they know each other in secure aggregation."""
    known = hub.site_keys
    missing = [name for name in names if name not in known]
    if hub.settings.insecure or missing or not names:
        raise TacitError(
            "protect.secure needs the key of every site"
            + (f", and {missing[0]} has none" if missing else ", and this hub has none"),
            f"add each site with `{hub.command('add')}`",
            code="hub.no-site-keys",
        )
    return {name: plain(known[name].read_text(encoding="utf-8")) for name in names}


def create_run(
    hub: HubDirectory,
    config: Path,
    changes: Mapping[str, Any],
    folder: Path | None = None,
    notify: Notify = lambda line: None,
) -> Path:
    """A new run of a config in its own folder; an impossible run is refused before anything is written."""
    made = load_config(hub, config, changes, notify)
    if folder:
        return _with_secret(Experiment.create(made, folder))
    with fresh(f"{made.method_name}-{config.stem}", hub.runs_folder) as free:
        return _with_secret(Experiment.create(made, free))


def _with_secret(experiment: Experiment) -> Path:
    """The run's folder, with a secret for client-level noise: sites know the seed."""
    if experiment.config.protect.hides_clients:
        experiment.directory.write_secret(secrets.randbits(128))
    return experiment.folder


def main(grid: GridClient, settings: Mapping[str, Any]) -> None:
    """Run all rounds, as Flower's ServerApp."""
    hub = HubDirectory.open(Path(str(settings["hub"])))
    folder = Path(str(settings["run"])) if settings["run"] else None
    if folder is None or not RunDirectory(folder).exists():
        if not settings["config"]:
            raise TacitError(
                "no run is given",
                "add --run-config 'config=\"FILE.toml\"' for a new run, or 'run=\"FOLDER\"' for an existing one",
                code="hub.no-run-given",
            )
        folder = create_run(hub, Path(str(settings["config"])), {}, folder)
    directory = RunDirectory(folder)
    with directory.lock() as lock:  # before anything is read: a second process would give the run other sites and ids
        directory.clear_stop_reason()
        try:
            run_rounds(hub, directory, grid, lock)
        except TacitError as error:
            error.resumable = error.resumable or isinstance(error, DiskError)
            directory.write_stop_reason(error)
            raise


def run_rounds(hub: HubDirectory, directory: RunDirectory, grid: GridClient, lock: IO[bytes]) -> None:
    """Wait for the sites, then run the remaining rounds of a run that the caller has locked."""
    notify = _progress_printer(directory)
    experiment = Experiment.reopen(directory.path)
    known = Sites.read(directory)
    id = known.run if known else uuid4().hex
    about = run_info(experiment.config, FederationSpec.of(experiment.job.federation), id, experiment.split)
    nodes = ClientNodes(grid, about, {}, IDENTIFY_SECONDS, None if hub.settings.insecure else hub.node_names)
    expected = known.names if known else hub.expected_sites
    names = wait_for_sites(nodes, expected, experiment.config, hub.settings.join_seconds, notify)
    refuse_without_labels(experiment, names, nodes)
    sites = Sites(id, names)
    if not known:
        sites.write(directory)
        for line in protection_notes(experiment.config, experiment.job):
            notify(line)
    nodes.expect(sites.numbers)
    note_introductions(directory, nodes)
    if experiment.config.protect.secure:
        peers = Peers(id, numbered(site_keys(hub, names)))
        experiment = replace(experiment, job=replace(experiment.job, peers=peers))
    traffic = experiment.traffic()
    for record in experiment.rounds(FlowerTransport(experiment.job, nodes, VERSION_BYTES), lock):
        traffic += record.all_bytes
        for line in skipped_lines(record, names):
            notify(line)
        progress = round_line(record, experiment.job.rounds, traffic)
        notify(f"{progress}  {record.clients} replied  {record.seconds:.0f} s")
        note_introductions(directory, nodes)
    _collect_scores(experiment, nodes, names, notify)


def note_introductions(directory: RunDirectory, nodes: ClientNodes) -> None:
    """Save what the sites say about themselves, for `tacit hub watch`, if it has changed."""
    before = directory.read_note(INTRODUCTIONS) or {}
    shown = ("samples", "labeled", "refusal", "version")
    said = {name: {each: getattr(info, each) for each in shown} for name, info in nodes.known.items()}
    if {**before, **said} != before:
        directory.write_note(INTRODUCTIONS, {**before, **said})


def _collect_scores(experiment: Experiment, nodes: ClientNodes, names: list[str], notify: Notify) -> None:
    """Note the scores of the final model at the sites whose owners let them leave."""
    model = experiment.result().params
    if model is None or not experiment.config.data.at_sites:
        return
    found = {names[client]: scores for client, scores in ask_for_scores(experiment.job, nodes, model).items()}
    if found:
        experiment.directory.write_site_scores(found)
    for name, scores in found.items():
        notify(f"{name}: {', '.join(score_texts(scores))} on its own test samples")


def refuse_without_labels(experiment: Experiment, names: list[str], nodes: ClientNodes) -> None:
    """Refuse a run with labels at the sites when all sites have joined and none has a label."""
    data = experiment.config.data
    infos = {info.name: info for info in nodes.infos().values()}
    if data.at_sites and data.labels != "server" and infos.keys() >= set(names):
        labeled = any(infos[name].labeled for name in names)  # a site that refuses reports no labels
        refuse_missing_labels(experiment.config, experiment.job, labels_at_clients=labeled)


def run_info(config: Config, spec: FederationSpec, run: str, split: Split) -> dict[str, str]:
    """What every message to a site says about the run."""
    described = {"config": configs.dumps(config), "description": spec.to_toml(), "run": run}
    return described | {"version": __version__, "schema": SCHEMA, "split": split.hash()}


def write_federation_file(
    hub: HubDirectory, config: Path, changes: Mapping[str, Any], notify: Notify = lambda line: None
) -> Path:
    """Write what sites need to check their data before a run of this config."""
    made = load_config(hub, config, changes, notify)
    path = hub.path / "federation.toml"
    spec = FederationSpec.of(federate(*build_data(made), made.data))
    keys = site_keys(hub, hub.expected_sites or []) if made.protect.secure else None
    write_durably(path, federation_toml(made, spec, keys).encode())
    return path


def wait_for_sites(
    nodes: ClientNodes, expected: list[str] | None, config: Config, seconds: float, notify: Notify
) -> list[str]:
    """The names of the sites in the order of their numbers, once they have joined or the time is over.

    Sites with a known name may join later. If any site may join, all must be there before they are numbered.
    """
    wanted, shown, until = config.data.clients, "", time.monotonic() + seconds
    waiting = _WaitingNotice(notify)
    while True:
        infos = {info.name: info for info in nodes.infos(waiting).values()}
        able = [name for name, info in infos.items() if not info.refusal]
        here = sorted(infos.keys() & set(expected) if expected else able)
        missing = [name for name in expected or [] if name not in here]
        text = _joined(here, missing, wanted, nodes.failures.values())
        if text != shown:
            notify(text)
        shown = text
        if len(here) >= wanted or time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    if len(here) < (config.engine.min_clients if expected else wanted):
        raise TacitError(
            f"{shown} after {seconds:g} s",
            "let the others join with `tacit site join`",
            code="hub.too-few-sites",
            resumable=True,
        )
    for name in here:
        if infos[name].refusal:
            notify(f"without {name}: {infos[name].refusal}")
    return sorted(expected or here[:wanted])


class _WaitingNotice:
    """Says whom the hub waits for, once it has waited for some seconds, and again when that changes."""

    def __init__(self, notify: Notify) -> None:
        self._notify, self._shown = notify, list[str]()
        self._from = time.monotonic() + NOTICE_SECONDS

    def __call__(self, names: list[str]) -> None:
        if time.monotonic() >= self._from and sorted(names) != self._shown:
            self._shown = sorted(names)
            self._notify(f"waiting for {', '.join(self._shown)}: connected, but not ready yet")


def _joined(here: list[str], missing: list[str], wanted: int, failures: Iterable[str]) -> str:
    if len(here) >= wanted:
        return f"{len(here)} sites have joined: {', '.join(here)}"
    who = f": {', '.join(missing)} missing" if missing else f" ({', '.join(here)})" if here else ""
    problems = "".join(f"; a node that joined fails: {reason}" for reason in sorted(set(failures)))
    return f"{len(here)} of {wanted} sites have joined{who}{problems}"


def _progress_printer(directory: RunDirectory) -> Notify:
    def notify(text: str) -> None:
        line = printable(text)  # it may quote a site
        print(line, flush=True)
        directory.append_progress(line)

    return notify
