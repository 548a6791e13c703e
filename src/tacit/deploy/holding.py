"""What a site holds, as a part of the federation: its own data under the federation's classes, or its share."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tacit.config import Config
from tacit.data import scenario
from tacit.data.images import Scale
from tacit.data.scenario import Split
from tacit.data.sources import Source
from tacit.deploy.description import Description
from tacit.deploy.kept import load_part
from tacit.deploy.settings import Site, beside
from tacit.engines.loop import Job
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.prepare import assemble, build_job


@dataclass(frozen=True)
class Holding:
    """A site, the run it is to take part in, and its own samples; None: it gets its share of the run's data set."""

    site: Site
    config: Config
    source: Source | None
    dealt: str | None = None  # hash of the split at the hub, which a share must come from; None: nobody knows

    @property
    def samples(self) -> int:
        """How many samples the site brings; 0 of a share, which depends on who else takes part."""
        return 0 if self.source is None else len(self.source.y)

    @property
    def labeled(self) -> int:
        """How many of them show their label."""
        shows = self.source is not None and self.config.data.labels != "server"
        return int((self.source.y != UNLABELED).sum()) if self.source is not None and shows else 0

    def job(self, client: int) -> Job:
        """The job as this site sees it when it is client number `client`."""
        clients = self.config.data.clients
        if client not in range(clients):
            raise TacitError(f"there is no client {client} in a federation of {clients}: raise data.clients at the hub")
        if self.source is None:
            return self._share()
        n, nothing = len(self.source.y), np.empty(0, dtype=np.int64)
        parts = [np.arange(n) if k == client else nothing for k in range(clients)]
        known = self.source.y.numpy() != UNLABELED
        split = Split(parts, known if self.labeled else known & False, nothing, nothing)
        # Nobody simulates here: labels that the run does not ask for serve nothing, not even a diagnosis.
        return assemble(self.config, replace(scenario.federation(self.source, split, self.config.data), truth=None))

    def _share(self) -> Job:
        job, split = build_job(self.config)
        if self.dealt not in (None, split.hash()):
            raise TacitError(
                f"the samples of {self.config.data.name} are dealt otherwise here than at the hub: get the data set "
                "from where the hub has it, and the same version of numpy"
            )
        return job


def hold(
    path: Path,
    site: Site,
    config: Config,
    description: Description,
    dealt: str | None = None,
    kept: Path | None = None,
) -> Holding:
    """What a site, whose settings are in the file `path`, brings to a run; refuses what does not fit the federation.

    `dealt` is the hash of the split at the hub, for a site that takes its share. Images are kept in `kept` as they were
    decoded, if it is given.
    """
    config = replace(config, engine=replace(config.engine, device=site.device))
    if site.data is None:
        if config.data.at_sites:
            raise TacitError("this run deals no data: name a folder, .csv or .npz as data in site.toml")
        return Holding(site, config, None, dealt)
    if not config.data.at_sites:
        raise TacitError(
            f"this run deals its own data ({config.data.partition}): leave data out of site.toml, "
            "or use partition = 'sites' at the hub"
        )
    try:
        return Holding(site, config, _own(beside(path, site.data), config, description, kept))
    except TacitError as error:  # what is told to others names the data as the site does, not its place on the disk
        place = beside(path, site.data)
        raise TacitError(str(error).replace(str(place), site.data).replace(f"{place.parent}/", "")) from error
    except OSError as error:
        raise TacitError(f"{site.data} can not be read: {error.strerror}; mend that at the site") from error


def _own(path: Path, config: Config, description: Description, kept: Path | None) -> Source:
    if description.text:
        raise TacitError("this federation's samples are text, of which a site can bring none: use images")
    source = load_part(path, description.classes, Scale(config.data.size, description.bits), kept)
    if source.bits is not None and description.bits is None:
        raise TacitError(
            f"images in {path} are grey of 16 bits and the hub does not say how many of these the federation uses: "
            f"set data.bits in the config at the hub; here {source.bits} hold the largest value"
        )
    source = _coloured(source, description.shape[0])
    shape = tuple(int(side) for side in source.x.shape[1:])
    if shape != description.shape:
        here, there = _size(shape), _size(description.shape)
        remedy = _remedy(shape, description.shape, arrays=path.suffix == ".npz")
        raise TacitError(f"images in {path} are {here} and the federation's {there}: {remedy}")
    return replace(source, mean=description.mean, std=description.std, flip=description.flip, shift=description.shift)


def _coloured(source: Source, channels: int) -> Source:
    """Grey images in a federation of colour have their value in each of the three channels; others are left alone."""
    if (source.x.shape[1], channels) != (1, 3):
        return source
    x, x_test = (pixels.repeat(1, channels, 1, 1) for pixels in (source.x, source.x_test))
    return replace(source, x=x, x_test=x_test)


def _remedy(here: tuple[int, ...], there: tuple[int, ...], *, arrays: bool) -> str:
    """What to do about images of another form."""
    if (here[0], there[0]) == (3, 1):
        return "save them as grey ones, or have the hub's in colour"
    if arrays or here[0] != there[0]:
        return "make them alike"
    return "scale them, or set data.size at the hub"


def _size(shape: tuple[int, ...]) -> str:
    channels, high, wide = shape
    colours = {1: "grey", 3: "in colour"}.get(channels, f"of {channels} channels")
    return f"{wide}×{high} {colours}"


def samples_per_class(source: Source) -> dict[str, int]:
    """How many samples of each class have a known label."""
    counts = torch.bincount(source.y[source.y != UNLABELED], minlength=len(source.classes)).tolist()
    return dict(zip(source.classes, counts, strict=True))
