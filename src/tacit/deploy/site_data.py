"""A site's data as part of the federation: its own samples with the federation's classes, or a share of a data set."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tacit.data import sources
from tacit.data.federate import federate
from tacit.data.sources import Source
from tacit.data.sources.images import Scale
from tacit.data.split.split import Split
from tacit.deploy.federation_spec import FederationSpec
from tacit.deploy.image_cache import load_part
from tacit.deploy.settings import Site, resolve_path
from tacit.deploy.site_errors import ShareableError
from tacit.engines.job import Job
from tacit.errors import TacitError
from tacit.federation import UNLABELED
from tacit.formatting import printable
from tacit.runs.build import assemble, build_job
from tacit.runs.config import Config


@dataclass(frozen=True)
class SiteData:
    """A site's samples in a run; `source` is None if the site gets a share of the run's data set."""

    site: Site
    config: Config
    source: Source | None
    split_hash: str | None = None  # of the split at the hub, which a share must come from; None: unknown

    @property
    def samples(self) -> int:
        """How many samples the site has; 0 for a share, which depends on the other sites."""
        return 0 if self.source is None else len(self.source.y)

    @property
    def tests(self) -> int:
        """How many samples the site itself holds out for testing; 0 for a share, whose test samples are common."""
        return 0 if self.source is None else len(self.source.y_test)

    @property
    def labeled(self) -> int:
        """How many of them have a label that the method sees."""
        visible = self.source is not None and self.config.data.labels != "server"
        return int((self.source.y != UNLABELED).sum()) if self.source is not None and visible else 0

    def job(self, client: int) -> Job:
        """The job as this site sees it when it is client number `client`."""
        clients = self.config.data.clients
        if client not in range(clients):
            raise ShareableError(
                f"there is no client {client} in a federation of {clients}",
                "raise data.clients at the hub",
                code="site.no-such-client",
            )
        if self.source is None:
            return self._job_of_share()
        n, nothing = len(self.source.y), np.empty(0, dtype=np.int64)
        parts = [np.arange(n) if k == client else nothing for k in range(clients)]
        known = self.source.y.numpy() != UNLABELED
        split = Split(parts, known if self.labeled else known & False, nothing, nothing)
        # This is no simulation: labels that the run does not use are dropped, even for diagnosis.
        return assemble(self.config, replace(federate(self.source, split, self.config.data), truth=None))

    def _job_of_share(self) -> Job:
        job, split = build_job(self.config)
        if self.split_hash not in (None, split.hash()):
            raise ShareableError(
                f"the split of {self.config.data.name} differs from the hub's",
                "use the same files and the same version of numpy as the hub",
                code="site.other-split",
            )
        return job


def load_site_data(
    path: Path,
    site: Site,
    config: Config,
    spec: FederationSpec,
    split_hash: str | None = None,
    cache: Path | None = None,
) -> SiteData:
    """The data of the site with the settings file `path` for a run; refuses data that does not fit the federation.

    `split_hash` is that of the split at the hub, for a site that gets a share. Decoded images are stored in the file
    `cache`, if it is given.
    """
    config = replace(config, engine=replace(config.engine, device=site.device))
    if site.data is None:
        if config.data.at_sites:
            raise ShareableError(
                "this run uses the sites' own data and this site has none",
                "set data in its site.toml to a folder, .csv, .npz or .parquet",
                code="site.no-data",
            )
        _require_allowed(config.data.name, path, site)
        return SiteData(site, config, None, split_hash)
    if not config.data.at_sites:
        raise ShareableError(
            f"this run splits a data set over the sites ({config.data.partition}) and this site has its own data",
            "remove data from its site.toml, or use partition = 'sites' at the hub",
            code="site.unexpected-data",
        )
    data = resolve_path(path, site.data)
    try:
        return SiteData(site, config, _load_own(data, config, spec, cache))
    except OSError as error:
        raise TacitError(
            f"cannot read {error.filename or data}: {error.strerror}",
            "check its permissions",
            code="site.unreadable-data",
        ) from error


def _require_allowed(name: str, path: Path, site: Site) -> None:
    """Refuse to read a file of this machine because a run names it; data sets that Tacit knows are public."""
    if sources.is_path(name) and Path(name) not in {resolve_path(path, each) for each in site.allow_data}:
        raise ShareableError(
            f"this run's data set is {printable(name, 200)}, and this site reads no file or folder that a run names",
            "use a data set of `tacit ls datasets`, set data in the site's site.toml, or allow_data to this path",
            code="site.data-not-allowed",
        )


def _load_own(path: Path, config: Config, spec: FederationSpec, cache: Path | None) -> Source:
    """The site's own samples. Errors here that the hub can remedy name no path, so the hub may read them."""
    if not spec.inputs.from_files:
        raise ShareableError(
            f"this federation's samples are {spec.inputs.kind}, and sites can only have images or tables",
            "use images or a table at the hub",
            code="site.text",
        )
    size, _, pad, skip_broken = config.data.reading
    source = load_part(path, spec.classes, Scale(size, spec.inputs.bits, pad, skip_broken), cache)
    if (found := spec.inputs.difference(source.inputs)) is not None:
        raise ShareableError(found.problem, found.remedy, code=found.code)
    x, x_test = (spec.inputs.adopt(part, source.inputs) for part in (source.x, source.x_test))
    return replace(source, x=x, x_test=x_test, inputs=spec.inputs)


def samples_per_class(source: Source) -> dict[str, int]:
    """How many samples of each class have a known label."""
    counts = torch.bincount(source.y[source.y != UNLABELED], minlength=len(source.classes)).tolist()
    return dict(zip(source.classes, counts, strict=True))
