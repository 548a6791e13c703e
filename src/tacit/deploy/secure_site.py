"""Secure aggregation at a site: whose keys it accepts, and when it refuses to take part."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tacit.deploy.consent import Consent
from tacit.deploy.identity import PrivateKey, fingerprint, numbered, plain, read_private_key
from tacit.deploy.settings import Site, resolve_path
from tacit.deploy.site_errors import ShareableError
from tacit.engines.secure_peers import Peers
from tacit.engines.secure_sessions import Sessions
from tacit.protect.config import threshold
from tacit.runs.config import Config

FOLDER = "_secure"  # in the folder of memories: what this site answered in each run
_DESCRIBE = "run `tacit hub describe` at the hub, and give the new federation.toml to all sites"


@dataclass(frozen=True)
class Identity:
    """This site among those whose keys are in `federation.toml`."""

    key: PrivateKey
    number: int
    keys: Mapping[str, str]

    def peers(self, path: Path, site: Site, run: str, client: int) -> Peers:
        """What this site needs to take part as client number `client`."""
        if client != self.number:
            raise ShareableError(
                f"the hub calls this site number {client}, and by federation.toml it is number {self.number}",
                _DESCRIBE,
                code="site.other-number",
            )
        sessions = Sessions(resolve_path(path, site.memory) / FOLDER, run)
        return Peers(run, numbered(self.keys), self.key, sessions)

    def fingerprints(self) -> dict[str, str]:
        """What to compare with each of the other sites."""
        return {name: fingerprint(key) for name, key in sorted(self.keys.items())}


def promises(identity: Identity, cohort: int) -> list[str]:
    """What secure aggregation hides from the hub, and on what that rests, a line each."""
    least, all_sites = threshold(cohort), len(identity.keys)
    return [
        f"the hub sees the sum of the updates of at least {least} sites in a round, and no single update",
        f"this holds while fewer than a third of the {all_sites} sites help the hub, and the keys below are theirs",
        "compare each fingerprint with that site, by phone say: a hub that put its own keys here could see everything",
        *(f"{name}: {found}" for name, found in identity.fingerprints().items()),
        "not hidden: how many samples and labels this site has, how many steps it trains, and what the sum shows",
    ]


def identify(path: Path, site: Site, config: Config, consent: Consent | None) -> Identity:
    """This site in a run with secure aggregation; refused unless the keys of all sites are pinned, also its own."""
    if consent is None or not consent.keys:
        raise ShareableError(
            "with protect.secure a site accepts the keys of others only from federation.toml, and it has none"
            + (" with --any-run" if consent is None else ""),
            _DESCRIBE if consent is not None else "join without --any-run, after `tacit site check`",
            code="site.no-pinned-keys",
        )
    if site.key is None:
        raise ShareableError(
            "with protect.secure a site signs with its own key, and this site has none",
            "create one with `tacit site init` in a new folder, and add it at the hub",
            code="site.no-key",
        )
    if len(consent.keys) != config.data.clients:
        raise ShareableError(
            f"federation.toml has the keys of {len(consent.keys)} sites, and the run has {config.data.clients}",
            _DESCRIBE,
            code="site.other-keys",
        )
    key = read_private_key(resolve_path(path, site.key))
    if plain(consent.keys.get(site.name, "")) != key.public:
        raise ShareableError(
            f"federation.toml has another key for {site.name} than this site",
            f"add the site's key with `tacit hub add`, then {_DESCRIBE}",
            code="site.key-not-pinned",
        )
    return Identity(key, sorted(consent.keys).index(site.name), consent.keys)
