"""What a site has agreed to: the run in `federation.toml`, once `tacit site check` has shown what leaves the machine.

`tacit site check` writes `check.json` next to `site.toml`. It holds a digest of `federation.toml` and of the settings
that decide what leaves. If one of them changes, the site takes part again only after another check.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.deploy.federation_spec import FederationSpec, read_federation
from tacit.deploy.settings import Site, resolve_path
from tacit.deploy.site_errors import ShareableError
from tacit.errors import TacitError
from tacit.runs import config as configs
from tacit.runs.config import Config, Role
from tacit.storage import SECRET, write_durably

FILE = "check.json"
SCHEMA = 1
DECIDES = (
    "data",
    "min_group",
    "share_scores",
    "max_epsilon",
    "allow",
    "allow_data",
)  # settings of a site that decide what leaves it


@dataclass(frozen=True)
class Consent:
    """The run that a site has agreed to: its settings, the form of its samples, and a digest of the agreement."""

    config: Config
    spec: FederationSpec
    digest: str
    keys: Mapping[str, str] = field(default_factory=dict)  # public keys of the sites by name, for secure aggregation

    def require(self, config: Config, spec: FederationSpec) -> None:
        """Refuse a run that sends anything else, or that takes more rounds. Seed and engine are free."""
        agreed, now = (configs.flat(each.tree(Role.RESULT)) for each in (self.config, config))
        changed = sorted(name for name in agreed.keys() | now.keys() if agreed.get(name) != now.get(name))
        if changed:
            raise _not_agreed(f"{changed[0]} is {now.get(changed[0])!r}, not {agreed.get(changed[0])!r}")
        if self.spec != spec:
            raise _not_agreed("the samples differ")
        if config.rounds > self.config.rounds:
            raise _not_agreed(f"it has {config.rounds} rounds, and {self.config.rounds} were agreed")


def read_consent(path: Path, site: Site) -> Consent:
    """The agreement of the site with the settings file `path`, whether or not it has been checked."""
    file = resolve_path(path, site.federation)
    if not file.is_file():
        raise TacitError(
            f"there is no {file}, so this site has not agreed to any run",
            "get it from the hub and run `tacit site check`, or correct federation in site.toml; "
            "for a trial on one machine, join with --any-run",
            code="site.no-consent",
        )
    content = file.read_bytes()
    config, spec, keys = read_federation(file, site.allow)
    return Consent(config, spec, _digest(content, site), keys)


def checked_consent(path: Path, site: Site) -> Consent:
    """The agreement of a site, refused unless `tacit site check` has passed since it last changed."""
    consent = read_consent(path, site)
    known = _recorded(path)
    if known != consent.digest:
        problem = "has not been checked" if known is None else "has changed since it was checked"
        raise TacitError(
            f"this site's agreement {problem}",
            f"run `tacit site check {path}` and read what would leave this machine",
            code="site.unchecked",
        )
    return consent


def record_check(path: Path, digest: str) -> None:
    """Store that the check of this agreement has passed."""
    values = {"schema": SCHEMA, "digest": digest, "checked": datetime.now(UTC).isoformat(timespec="seconds")}
    write_durably(path.parent / FILE, (json.dumps(values) + "\n").encode(), mode=SECRET)


def _recorded(path: Path) -> str | None:
    """The digest of the last check that passed; None if there was none, or its file is broken."""
    try:
        values: Any = json.loads((path.parent / FILE).read_text(encoding="utf-8"))
        return str(values["digest"]) if values["schema"] == SCHEMA else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _digest(federation: bytes, site: Site) -> str:
    decides = json.dumps({name: getattr(site, name) for name in DECIDES}, sort_keys=True)
    return hashlib.sha256(hashlib.sha256(federation).digest() + decides.encode()).hexdigest()


def _not_agreed(what: str) -> ShareableError:
    return ShareableError(
        f"the site has not agreed to this run ({what})",
        "send it the run's federation.toml, made with `tacit hub describe`",
        code="site.not-agreed",
    )
