"""`tacit site check`: whether a site's data fits the federation, and what would leave the machine. Sends nothing."""

from dataclasses import dataclass
from pathlib import Path

from tacit.deploy import journal
from tacit.deploy.consent import read_consent
from tacit.deploy.dry_run import INVENTED_SAMPLES, OWN_SAMPLES, RoundTraffic, dry_run
from tacit.deploy.sample_guard import group_problem
from tacit.deploy.secure_site import identify, promises
from tacit.deploy.settings import Site, load_settings, resolve_path
from tacit.deploy.site_data import load_site_data, samples_per_class
from tacit.engines.job import Job
from tacit.errors import TacitError
from tacit.learn.batching import Rates, visit_steps
from tacit.protect.sample_budget import Spent, epsilon
from tacit.runs.config import Config
from tacit.runs.protection import privacy_lines


@dataclass(frozen=True)
class SamplePrivacy:
    """How much a run with DP-SGD can reveal about one sample, by its settings and the site's number of samples."""

    epsilon: float  # of all agreed rounds
    delta: float
    steps: int  # of training, in all these rounds
    rate: float  # the probability of a sample to be in a step
    total: float  # ε together with what has left before, by the journal


def sample_privacy(job: Job, folder: Path) -> SamplePrivacy | None:
    """What client 0 of a job reveals in all rounds; None without DP-SGD."""
    given, method = job.sample_noise, job.method
    if given is None:
        return None
    holder, labels_only = job.client(0, 0), bool(method.objective.labels_only)  # type: ignore[attr-defined]
    planned = Spent(given.noise, Rates.of(holder, labels_only).largest, visit_steps(holder, labels_only) * job.rounds)
    total, delta = journal.read(folder).privacy(planned, len(holder.samples))
    return SamplePrivacy(epsilon([planned], delta), delta, planned.steps, planned.rate, total)


@dataclass(frozen=True)
class Report:
    """What a site brings to a run, and what travels in its rounds."""

    site: Site
    agreement: str  # digest of what was checked
    rounds_agreed: int  # a run may have fewer, not more
    memory: Path  # folder of what methods remember
    method: str
    net: str
    labels: str  # who has labels in this run
    samples: int | None  # None: a share of the run's data set, which the hub splits
    labeled: int  # samples with a label that the method sees
    hidden: int  # samples with a label that the method does not see
    test: int
    classes: dict[str, int]  # labels per class
    note: str  # how the samples were converted
    dry_run_samples: int  # samples of the site in the dry run
    protection: list[str]  # what `[protect]` of the run promises to this site, and what it does not
    rounds: list[RoundTraffic]  # those that differ; the last one stands for all later ones
    secure: list[str]  # what secure aggregation hides from the hub; empty without it
    hold_out: float | None = None  # share of its labels that the site holds out, to count which are right
    privacy: SamplePrivacy | None = None  # what the run may reveal about a sample; None: nothing limits it

    @property
    def sample_like_items(self) -> list[str]:
        """Names of uploaded items that have the shape of samples."""
        return [item.name for each in self.rounds if each.up for item in each.up.items if item.like_samples]

    @property
    def sample_copies(self) -> list[str]:
        """Names of uploaded items that hold unchanged samples."""
        return [item.name for each in self.rounds if each.up for item in each.up.items if item.copies_samples]

    def require_safe(self) -> None:
        """Refuse a run that shows more of single samples than this site's settings allow."""
        budget = self.site.max_epsilon
        if budget is not None and self.samples is not None and (self.privacy is None or self.privacy.total > budget):
            found = (
                "no limit (protect.sample_noise is not set)"
                if self.privacy is None
                else f"ε = {self.privacy.total:.3g}"
            )
            raise TacitError(
                f"with all its rounds this run could reveal {found}, and the budget of this site is {budget:g}",
                "ask the hub for more noise or fewer rounds, or raise max_epsilon in site.toml if that much may leave",
                code="site.budget-too-small",
            )
        least = min(self.site.min_group, INVENTED_SAMPLES if self.samples is None else OWN_SAMPLES)
        groups = [each.smallest_group for each in self.rounds if each.smallest_group is not None]
        if groups and min(groups) < least:
            raise TacitError(
                group_problem(min(groups), self.site.min_group),
                "do not join this run, or lower min_group in site.toml if that much may leave",
                code="site.group-too-small",
            )


def check(path: Path) -> Report:
    """Read a site's data as a run would, and run the first rounds with some of it."""
    site = load_settings(Site, path)
    consent = read_consent(path, site)
    config, spec = consent.config, consent.spec
    identity = identify(path, site, config, consent) if config.protect.secure else None
    data = load_site_data(path, site, config, spec)
    source = data.source
    known = {} if source is None else samples_per_class(source)
    rounds = dry_run(data.config, spec, source)
    return Report(
        site=site,
        agreement=consent.digest,
        rounds_agreed=config.rounds,
        memory=resolve_path(path, site.memory),
        method=config.method_name,
        net=config.net.name,
        labels=config.data.labels,
        samples=None if source is None else data.samples,
        labeled=data.labeled,
        hidden=sum(known.values()) - data.labeled,
        test=0 if source is None else len(source.y_test),
        classes=known,
        note="" if source is None else source.note,
        dry_run_samples=0 if source is None else min(data.samples, OWN_SAMPLES),
        protection=_protection(config),
        rounds=rounds,
        hold_out=config.data.hold_out,
        secure=[] if identity is None else promises(identity, config.cohort or config.data.clients),
        privacy=None if source is None else sample_privacy(data.job(0), path.parent),
    )


def _protection(config: Config) -> list[str]:
    """What the run will have spent at its end; a site may lack the package that counts it."""
    try:
        return privacy_lines(config)
    except TacitError as error:
        return [str(error)]
