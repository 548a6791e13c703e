"""A site's pair of keys as its identity: what it signs with in secure aggregation, and how others know it."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.deploy.site_errors import ShareableError
from tacit.errors import TacitError


@dataclass(frozen=True)
class PrivateKey:
    """The private key of a site, ECDSA as `tacit site init` creates it."""

    key: Any

    def sign(self, data: bytes, /) -> bytes:
        """The signature of these bytes."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA384

        signature: bytes = self.key.sign(data, ECDSA(SHA384()))
        return signature

    @property
    def public(self) -> str:
        """The public key in OpenSSH's format, without a comment."""
        from cryptography.hazmat.primitives import serialization

        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        text: bytes = self.key.public_key().public_bytes(*form)
        return text.decode()


@dataclass(frozen=True)
class PublicKey:
    """The public key of a site."""

    key: Any

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """Raise InvalidSignature unless the site has signed these bytes."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA384

        self.key.verify(signature, data, ECDSA(SHA384()))


def read_private_key(path: Path) -> PrivateKey:
    """The private key in a file."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
        if not isinstance(key, EllipticCurvePrivateKey):
            raise ValueError("another kind of key")
        return PrivateKey(key)
    except (OSError, ValueError, TypeError) as error:
        raise TacitError(
            f"{path} is not the private key of a site",
            "restore it, or create a new pair with `tacit site renew-key`",
            code="site.broken-key",
        ) from error


def parse_public_key(name: str, text: str) -> PublicKey:
    """The public key of the site with this name."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(text.encode())
        if not isinstance(key, EllipticCurvePublicKey):
            raise ValueError("another kind of key")
        return PublicKey(key)
    except ValueError as error:
        raise ShareableError(
            f"the key of {name} in federation.toml cannot be read",
            "ask the hub for the file again",
            code="federation.broken-key",
        ) from error


def plain(text: str) -> str:
    """A public key without its comment."""
    return " ".join(text.split()[:2])


def fingerprint(text: str) -> str:
    """What people compare of a public key; `ssh-keygen -lf FILE.pub` shows the same."""
    content = base64.b64decode(text.split()[1])
    return f"SHA256:{base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')}"


def numbered(keys: Mapping[str, str]) -> dict[int, PublicKey]:
    """The key of each client: sites are numbered by their names, in every run."""
    return {number: parse_public_key(name, keys[name]) for number, name in enumerate(sorted(keys))}
