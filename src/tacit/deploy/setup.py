"""`tacit site init`: a site's settings file, with what each setting means, and its pair of keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.catalog import check
from tacit.deploy.files import OPEN, SECRET, write_new
from tacit.deploy.settings import Site, settings_text
from tacit.errors import TacitError

FILE = "site.toml"
CERTIFICATE = "ca.crt"  # of the hub's authority, which comes from there


@dataclass(frozen=True)
class Written:
    """The files of a new site."""

    site: Path
    public_key: Path | None  # None where nothing is encrypted


def create(folder: Path, name: str, data: Path | None, *, insecure: bool = False) -> Written:
    """Write a site's files into a folder; nothing that is there is overwritten, and a failure leaves nothing behind."""
    given: dict[str, Any] = {"name": name}
    if data is not None:
        if not data.expanduser().exists():
            raise TacitError(f"there is no file or folder {data}: check --data")
        given["data"] = str(data.expanduser().absolute())
    files: dict[str, tuple[bytes, int]] = {}
    if not insecure:
        given |= {"certificate": CERTIFICATE, "key": f"{name}.key"}
    check(Site, given, "")
    if not insecure:
        private, public = key_pair(f"{name}@tacit")
        files = {f"{name}.key": (private, SECRET), f"{name}.key.pub": (public, OPEN)}
    write_new(folder, files | {FILE: (settings_text(Site, given, "A site of a federation.").encode(), OPEN)})
    return Written(folder / FILE, None if insecure else folder / f"{name}.key.pub")


def key_pair(comment: str) -> tuple[bytes, bytes]:
    """A new private and public key (ECDSA on P-384) in the form of OpenSSH, which Flower's programs take."""
    try:
        from cryptography.hazmat.primitives import serialization as forms
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise TacitError(f"keys need {error.name}, which is not here: pip install 'tacit[flower]'") from error
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    return private, public + f" {comment}\n".encode()
