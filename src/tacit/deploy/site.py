"""A site's replies to the hub, through Flower's node. Every message is a new process, so nothing stays in RAM."""

import re
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit import __version__, user_code
from tacit.deploy import image_cache, journal, local_scores
from tacit.deploy.consent import Consent, checked_consent
from tacit.deploy.federation_spec import FederationSpec
from tacit.deploy.journal import Entry
from tacit.deploy.local_scores import LocalScore
from tacit.deploy.sample_guard import require_groups
from tacit.deploy.secure_site import identify
from tacit.deploy.settings import ANY_RUN, HUB_ADDRESS, SITE_FILE, Site, load_settings, resolve_path
from tacit.deploy.site_data import SiteData, load_site_data
from tacit.deploy.site_errors import ShareableError, shared_with_hub, withheld_code
from tacit.engines import failures
from tacit.engines.flower import SCHEMA, Departure, NodeInfo, RunInfo, Safeguards, Workspace
from tacit.engines.job import ClientFailure
from tacit.engines.memory import KEPT, MemoryStore
from tacit.protect.sample_budget import Spent
from tacit.runs import config as configs
from tacit.runs.net.feature_cache import with_cached_features
from tacit.storage import on_disk

LONGEST = 200  # characters of a text from the hub in the journal


def introduce(about: RunInfo, node: Mapping[str, Any]) -> NodeInfo:
    """The site's name and what it brings to the run, or why it cannot take part."""
    with shared_with_hub():
        path = _settings_file(node)
        site = load_settings(Site, path)
    try:
        with shared_with_hub(), user_code.only(site.allow):
            data, consent = _load_data(about, path, site, node)
            data.job(0)
            if data.config.protect.secure:
                identify(path, site, data.config, consent)
            _memory_store(about, path, site)
    except ShareableError as error:
        return NodeInfo(site.name, refusal=str(error))
    shares = site.share_scores and data.tests > 0
    return NodeInfo(site.name, samples=data.samples, labeled=data.labeled, shares_scores=shares, version=__version__)


def open_workspace(about: RunInfo, node: Mapping[str, Any], client: int) -> Workspace:
    """The workspace of this site as client number `client`; its memory is on its disk, separate for every run."""
    with shared_with_hub():
        path = _settings_file(node)
        site = load_settings(Site, path)
        with user_code.only(site.allow):
            data, consent = _load_data(about, path, site, node)
            # The hub knows the seed: noise that it could repeat would protect nothing.
            job = replace(with_cached_features(data.config, data.job(client)), secret_noise=True)
        if data.config.protect.secure:
            identity = identify(path, site, data.config, consent)
            job = replace(job, peers=identity.peers(path, site, _run_id(about), client))
        store = _memory_store(about, path, site, data.config.log.keep_checkpoints)

    def permit(up: object) -> None:
        with shared_with_hub():
            require_groups(job, up, site.min_group)

    def keep_accuracy(round: int, accuracy: float) -> None:
        score = LocalScore(round + 1, accuracy, data.tests)
        local_scores.note(resolve_path(path, site.memory), _get(about, "run"), score)

    # On its own test samples, the accuracy of its own model is a score of theirs as well.
    shares = site.share_scores and data.tests > 0
    evaluates = shares or data.source is None
    kept = keep_accuracy if data.tests else None
    return Workspace(job, store, permit, shares, site.share_scores or data.source is None, evaluates, kept)


class SiteSafeguards(Safeguards):
    """A site writes everything that leaves it into its journal, and keeps the details of its errors."""

    def record(self, about: RunInfo, node: Mapping[str, Any], departure: Departure) -> None:
        """Add a line to the journal. Without it only the code of a failure may leave."""
        entry = Entry(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            kind=_kind(departure),
            run=about.get("run", "")[:LONGEST],
            round=None if departure.round is None else departure.round + 1,
            method=_method_name(about),
            fields=departure.fields,
            bytes=departure.size,
            hub=str(node.get(HUB_ADDRESS, "")),
            reason=departure.refusal or departure.failure,
            scores=dict(departure.scores),
            privacy={} if departure.spent is None else journal.privacy_of(departure.spent, departure.samples),
        )
        with suppress(ShareableError) if departure.failure else nullcontext(), shared_with_hub():
            path = _settings_file(node)
            if departure.spent is not None:
                _require_budget(path, departure.spent, departure.samples)
            journal.append(path.parent, entry)

    def failure(self, about: RunInfo, node: Mapping[str, Any], error: Exception) -> ClientFailure:
        """A code, and how often this site has failed in the run."""
        code, count = withheld_code(error), 1
        with suppress(OSError, ShareableError):
            count += journal.read(_settings_file(node).parent).failures(about.get("run", ""))
        return failures.withheld(code, count)


def _require_budget(path: Path, spent: Spent, samples: int) -> None:
    """Refuse to send an update after which this site would have revealed more than its budget allows."""
    budget = load_settings(Site, path).max_epsilon
    if budget is None:
        return
    found, _ = journal.read(path.parent).privacy(spent, samples)
    if found > budget:
        raise ShareableError(
            "this update would exceed the site's privacy budget",
            "end the run, leave this site out, or agree with it on more noise (protect.sample_noise)",
            code="site.budget-spent",
        )


def _kind(departure: Departure) -> str:
    if departure.failure:
        return journal.FAILURE
    if departure.refusal:
        return journal.REFUSAL
    if departure.exchange:
        return journal.EXCHANGE
    return journal.INTRODUCTION if departure.round is None else journal.UPDATE


def _method_name(about: RunInfo) -> str:
    """The method in a config from the hub, as it is written there."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        return str(tomllib.loads(about["config"])["method"]["name"])[:LONGEST]
    return ""


def _settings_file(node: Mapping[str, Any]) -> Path:
    if SITE_FILE not in node:
        raise ShareableError(
            "the node does not know its site.toml", "start it with `tacit site join`", code="site.no-node-settings"
        )
    return Path(str(node[SITE_FILE]))


def _load_data(about: RunInfo, path: Path, site: Site, node: Mapping[str, Any]) -> tuple[SiteData, Consent | None]:
    """The site's data for a run, and its agreement to the run; None if it takes part in any."""
    _require_version(about)
    config = configs.make(tomllib.loads(_get(about, "config")))
    spec = FederationSpec.from_toml(_get(about, "description"))
    consent = None if node.get(ANY_RUN) else checked_consent(path, site)
    if consent is not None:
        consent.require(config, spec)
    cache = resolve_path(path, site.memory) / image_cache.FILE
    return load_site_data(path, site, config, spec, _get(about, "split"), cache), consent


def _require_version(about: RunInfo) -> None:
    """Refuse a hub whose messages or settings may mean something else; a release that only fixes errors may differ."""
    version = _get(about, "version")
    if _release(version) != _release(__version__):
        raise ShareableError(
            f"the hub has version {version[:LONGEST]} of Tacit and this site {__version__}",
            "install the same release at both: the first two numbers of the version must agree",
            code="site.other-version",
        )
    if (schema := _get(about, "schema")) != SCHEMA:
        raise ShareableError(
            f"the hub's messages have form {schema[:LONGEST]} and this site's {SCHEMA}",
            "install the same version of Tacit at both",
            code="site.other-schema",
        )


def _release(version: str) -> list[str]:
    """The part of a version that decides what settings and messages mean."""
    return version.split(".")[:2]


def _memory_store(about: RunInfo, path: Path, site: Site, keep: int = KEPT) -> MemoryStore:
    """The store for this run."""
    run = _run_id(about)
    memory = resolve_path(path, site.memory)
    with on_disk(memory):
        memory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return MemoryStore(memory / run, keep)


def _run_id(about: RunInfo) -> str:
    """The id of the run, which comes from the hub and must not lead out of a folder."""
    run = _get(about, "run")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}", run):
        raise ShareableError(
            f"{run!r} is not the id of a run", "use letters, digits, '-', '_', '+' and '.'", code="site.bad-run-id"
        )
    return run


def _get(about: RunInfo, name: str) -> str:
    if name not in about:
        raise ShareableError(
            f"the hub does not send its {name}", "use the same version of Tacit there", code="site.incomplete-message"
        )
    return about[name]
