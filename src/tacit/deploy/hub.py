"""What runs at the hub while a run is played: wait for the sites, number them, play the rounds.

sites.json      the sites in the order of their numbers, and the id that the run has at every site
progress.log    what a person wants to know, line by line
error.txt       why the run stopped, in one sentence, if it did
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from tacit import __version__
from tacit import config as configs
from tacit.config import Config
from tacit.data import scenario
from tacit.data.scenario import Split
from tacit.deploy.description import Description, federation_text
from tacit.deploy.folder import HubFolder
from tacit.display import round_line
from tacit.engines.flower import FlowerCourier, Post, Roster
from tacit.engines.memory import write_durably
from tacit.errors import TacitError
from tacit.experiment import Experiment
from tacit.folders import fresh, locked
from tacit.prepare import build_data, refuse_missing_labels

LOOK = 1.0  # seconds between two looks at who has joined
PATIENCE = 120.0  # seconds a node may take to say who it is
Say = Callable[[str], None]


@dataclass(frozen=True)
class Sites:
    """Who takes part: a site's number is its place in the list, in every round and after every resume."""

    run: str  # id of the run, under which sites keep their memory
    names: list[str]

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each site."""
        return {name: number for number, name in enumerate(self.names)}

    @classmethod
    def read(cls, run: Path) -> "Sites | None":
        """The sites of a run that has begun."""
        file = run / "sites.json"
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
        except (OSError, ValueError, TypeError) as error:
            raise TacitError(f"{file} can not be read ({error}): put it back, or start a new run") from error

    def write(self, run: Path) -> None:
        """Fix them."""
        write_durably(run / "sites.json", json.dumps(asdict(self)).encode())


def load(folder: HubFolder, config: Path, changes: Mapping[str, Any]) -> Config:
    """A config as it is played with the sites of a hub: one client each."""
    tree, sites = configs.read(config), folder.sites
    if sites and isinstance(tree.setdefault("data", {}), dict):
        tree["data"].setdefault("clients", len(sites))
    made = configs.from_options(changes, tree)
    if sites and made.data.clients != len(sites):
        raise TacitError(
            f"the config has {made.data.clients} clients and the hub {len(sites)} sites ({', '.join(sites)}): "
            f"set data.clients = {len(sites)}"
        )
    return replace(made, engine=replace(made.engine, name="flower"))


def prepare(folder: HubFolder, config: Path, changes: Mapping[str, Any], run: Path | None = None) -> Path:
    """A new run of a config, in a folder of its own; refused before anything is written when it can not be played."""
    made = load(folder, config, changes)
    if run:
        return Experiment.create(made, run).folder
    with fresh(f"{made.method_name}-{config.stem}", folder.runs) as free:
        return Experiment.create(made, free).folder


def main(post: Post, settings: Mapping[str, Any]) -> None:
    """Play a run to its end, as Flower's ServerApp."""
    folder = HubFolder.open(Path(str(settings["hub"])))
    run = Path(str(settings["run"])) if settings["run"] else None
    if run is None or not (run / "config.toml").exists():
        if not settings["config"]:
            raise TacitError('there is no run to play: give --run-config \'config="FILE.toml"\', or run="FOLDER"')
        run = prepare(folder, Path(str(settings["config"])), {}, run)
    with locked(run) as lock:  # from the first look at it: a second player would give the run other sites and ids
        (run / "error.txt").unlink(missing_ok=True)
        try:
            play(folder, run, post, lock)
        except TacitError as error:
            write_durably(run / "error.txt", str(error).encode())
            raise


def play(folder: HubFolder, run: Path, post: Post, lock: IO[bytes]) -> None:
    """Wait for the sites, then play the rounds that are left of a run that the caller has locked."""
    say = _journal(run)
    experiment = Experiment.reopen(run)
    known = Sites.read(run)
    id = known.run if known else uuid4().hex
    told = about(experiment.config, Description.of(experiment.job.federation), id, experiment.split)
    roster = Roster(post, told, {}, PATIENCE, None if folder.hub.insecure else folder.nodes)
    names = gather(roster, known.names if known else folder.sites, experiment.config, folder.hub.join_seconds, say)
    refuse_without_labels(experiment, names, roster)
    sites = Sites(id, names)
    if not known:
        sites.write(run)
    roster.expect(sites.numbers)
    total = experiment.traffic()
    for record in experiment.rounds(FlowerCourier(experiment.job, roster), lock):
        total += record.bytes_up + record.bytes_down
        for client, reason in record.skipped.items():
            say(f"round {record.round + 1}: without {names[client]} ({reason})")
        say(f"{round_line(record, experiment.job.rounds, total)}  {record.clients} replied  {record.seconds:.0f} s")


def refuse_without_labels(experiment: Experiment, names: list[str], roster: Roster) -> None:
    """Refuse a run whose labels are at the sites when all of these are there and none has any."""
    data = experiment.config.data
    places = {place.name: place for place in roster.places().values()}
    if data.at_sites and data.labels != "server" and places.keys() >= set(names):
        labeled = any(places[name].labeled for name in names)  # a place that is refused brings none
        refuse_missing_labels(experiment.config, experiment.job, labels_at_clients=labeled)


def about(config: Config, description: Description, run: str, split: Split) -> dict[str, str]:
    """What every site is told with every message."""
    said = {"config": configs.dumps(config), "description": description.to_text(), "run": run}
    return said | {"version": __version__, "split": split.hash()}


def describe(folder: HubFolder, config: Path, changes: Mapping[str, Any]) -> Path:
    """Write what sites need to check their data before a run of this config."""
    made = load(folder, config, changes)
    path = folder.folder / "federation.toml"
    said = Description.of(scenario.federation(*build_data(made), made.data))
    write_durably(path, federation_text(made, said).encode())
    return path


def gather(roster: Roster, expected: list[str] | None, config: Config, seconds: float, say: Say) -> list[str]:
    """The names of the sites in the order of their numbers, once they have joined or the time is over.

    Sites that are known by name may come later; when any may come, all must be there before they are numbered.
    """
    wanted, told, until = config.data.clients, "", time.monotonic() + seconds
    while True:
        places = {place.name: place for place in roster.places().values()}
        able = [name for name, place in places.items() if not place.refusal]
        here = sorted(places.keys() & set(expected) if expected else able)
        missing = [name for name in expected or [] if name not in here]
        if text := _state(here, missing, wanted, roster.failures.values()):
            if text != told:
                say(text)
            told = text
        if len(here) >= wanted or time.monotonic() > until:
            break
        time.sleep(LOOK)
    if len(here) < (config.engine.min_clients if expected else wanted):
        raise TacitError(f"{told} after {seconds:g} s: have them join with `tacit site join`, then resume")
    for name in here:
        if places[name].refusal:
            say(f"without {name}: {places[name].refusal}")
    return sorted(expected or here[:wanted])


def _state(here: list[str], missing: list[str], wanted: int, failures: Any) -> str:
    if len(here) >= wanted:
        return f"{len(here)} sites have joined: {', '.join(here)}"
    who = f": {', '.join(missing)} missing" if missing else f" ({', '.join(here)})" if here else ""
    trouble = "".join(f"; one that joined fails: {reason}" for reason in sorted(set(failures)))
    return f"{len(here)} of {wanted} sites have joined{who}{trouble}"


def _journal(run: Path) -> Say:
    def say(text: str) -> None:
        print(text, flush=True)
        with (run / "progress.log").open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    return say
