"""`tacit site check`: does a site's data fit the federation, and what would leave the machine? Nothing is sent."""

from dataclasses import dataclass
from pathlib import Path

from tacit.deploy.description import read_federation
from tacit.deploy.holding import hold, samples_per_class
from tacit.deploy.rehearsal import OWN, Round, rehearse
from tacit.deploy.settings import Site, beside, load


@dataclass(frozen=True)
class Report:
    """What a site brings to a run, and what travels in its rounds."""

    site: Site
    memory: Path  # where what methods remember stays
    method: str
    net: str
    labels: str  # who has labels in this run
    samples: int | None  # None: a share of the run's data set, which the hub deals
    labeled: int  # of the samples: show their label to the method
    hidden: int  # have a label that the method does not see
    test: int
    classes: dict[str, int]  # labels of each class
    note: str  # what was done to the images
    rehearsed: int  # samples of the site in the rehearsal
    rounds: list[Round]  # those that differ; the last one stands for all after it

    @property
    def shows_samples(self) -> list[str]:
        """Names of what leaves with the form of samples."""
        return [item.name for each in self.rounds if each.up for item in each.up.items if item.like_samples]

    @property
    def copies_samples(self) -> list[str]:
        """Names of what leaves and holds samples as they are."""
        return [item.name for each in self.rounds if each.up for item in each.up.items if item.copies]


def check(path: Path) -> Report:
    """Read a site's data as a run would, and rehearse the run's first rounds with some of it."""
    site = load(Site, path)
    config, description = read_federation(beside(path, site.federation))
    holding = hold(path, site, config, description)
    source = holding.source
    known = {} if source is None else samples_per_class(source)
    rounds = rehearse(holding.config, description, source)
    return Report(
        site=site,
        memory=beside(path, site.memory),
        method=config.method_name,
        net=config.net.name,
        labels=config.data.labels,
        samples=None if source is None else holding.samples,
        labeled=holding.labeled,
        hidden=sum(known.values()) - holding.labeled,
        test=0 if source is None else len(source.y_test),
        classes=known,
        note="" if source is None else source.note,
        rehearsed=0 if source is None else min(holding.samples, OWN),
        rounds=rounds,
    )
