"""`tacit site init`: a site's settings file, with an explanation of each setting, and its pair of keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.deploy.settings import Site, settings_toml
from tacit.errors import TacitError
from tacit.runs.settings import check
from tacit.storage import OPEN, SECRET, write_new

FILE = "site.toml"
CERTIFICATE = "ca.crt"  # of the hub's authority, copied from the hub


@dataclass(frozen=True)
class SiteFiles:
    """The files of a new site."""

    settings: Path
    public_key: Path | None  # None if nothing is encrypted


def create(folder: Path, name: str, data: Path | None, *, insecure: bool = False, port: int | None = None) -> SiteFiles:
    """Write a site's files into a folder; nothing is overwritten, and a failure leaves nothing behind."""
    given: dict[str, Any] = {"name": name} | ({} if port is None else {"port": port})
    if data is not None:
        if not data.expanduser().exists():
            raise TacitError(f"there is no file or folder {data}", "check --data", code="site.no-such-data")
        given["data"] = str(data.expanduser().absolute())
    files: dict[str, tuple[bytes, int]] = {}
    if not insecure:
        given |= {"certificate": CERTIFICATE, "key": f"{name}.key"}
    check(Site, given, "")
    if not insecure:
        private, public = create_key_pair(f"{name}@tacit")
        files = {f"{name}.key": (private, SECRET), f"{name}.key.pub": (public, OPEN)}
    write_new(folder, files | {FILE: (settings_toml(Site, given, "A site of a federation.").encode(), OPEN)})
    return SiteFiles(folder / FILE, None if insecure else folder / f"{name}.key.pub")


def create_key_pair(comment: str) -> tuple[bytes, bytes]:
    """A new private and public key (ECDSA on P-384) in OpenSSH's format, which Flower's programs read."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise TacitError(
            f"keys need the package {error.name}", "pip install 'tacit[flower]'", code="site.no-cryptography"
        ) from error
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, form = serialization.Encoding, serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(encoding.PEM, form, serialization.NoEncryption())
    public = key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + f" {comment}\n".encode()
