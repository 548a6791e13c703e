"""Renew what a hub and a site prove themselves with; nothing else of them changes."""

import datetime
from pathlib import Path

from tacit.deploy import certificates
from tacit.deploy.certificates import Pair
from tacit.deploy.hub_directory import HubDirectory
from tacit.deploy.settings import Site, load_settings, resolve_path
from tacit.deploy.site_init import create_key_pair
from tacit.errors import TacitError
from tacit.storage import OPEN, SECRET, write_durably

SOON = datetime.timedelta(days=60)  # when `tacit hub status` begins to tell of the end


def renew_certificate(hub: HubDirectory) -> datetime.datetime:
    """Replace the hub's certificate and its key by new ones that sites accept; when they end."""
    _refuse_insecure(hub)
    if not hub.authority_key_file.exists():
        raise TacitError(
            f"there is no {hub.authority_key_file}, which signs certificates",
            f"restore it, or create another authority with `{hub.command('renew --authority')}`",
            code="hub.no-authority-key",
        )
    authority = Pair(hub.authority_file.read_bytes(), hub.authority_key_file.read_bytes())
    made = certificates.issue(hub.settings.host, authority)
    write_durably(hub.key_file, made.key, SECRET)
    write_durably(hub.certificate_file, made.certificate, OPEN)
    return certificates.valid_until(made.certificate)


def renew_authority(hub: HubDirectory) -> None:
    """Create another authority. Its certificate file also holds that of the former one.

    So sites with the new file accept the hub before and after its next certificate, which the new authority signs.
    """
    _refuse_insecure(hub)
    made, former = certificates.create_authority(hub.settings.host), hub.authority_file.read_bytes()
    end = b"-----END CERTIFICATE-----"
    first, _, _ = former.partition(end)
    write_durably(hub.authority_key_file, made.key, SECRET)
    write_durably(hub.authority_file, made.certificate + first + end + b"\n", OPEN)


def certificate_ends(hub: HubDirectory) -> datetime.datetime | None:
    """When the hub's certificate ends, if that is soon."""
    if hub.settings.insecure:
        return None
    until = certificates.valid_until(hub.certificate_file.read_bytes())
    return until if until < datetime.datetime.now(datetime.UTC) + SOON else None


def renew_site_key(settings_file: Path) -> Path:
    """Give a site a new pair of keys; the public one. The former pair stays next to it, with `.old` in its names."""
    site = load_settings(Site, settings_file)
    if site.key is None:
        raise TacitError(f"{settings_file} names no key", "set key there first", code="site.no-key")
    private, public = (resolve_path(settings_file, f"{site.key}{end}") for end in ("", ".pub"))
    new_private, new_public = create_key_pair(f"{site.name}@tacit")
    for path in (private, public):
        if path.exists():
            path.replace(path.with_name(f"{path.name}.old"))
    write_durably(private, new_private, SECRET)
    write_durably(public, new_public, OPEN)
    return public


def _refuse_insecure(hub: HubDirectory) -> None:
    if hub.settings.insecure:
        raise TacitError(
            "this hub uses no certificates",
            f"remove `insecure` from {hub.settings_file} if it should",
            code="hub.insecure",
        )
