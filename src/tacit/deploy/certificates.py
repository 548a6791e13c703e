"""The hub's certificates: an authority of its own, and what the hub shows to sites, signed by it."""

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Any

from tacit.errors import TacitError

DAYS = 825  # what common programs accept of a server's certificate
EVERYWHERE = ("127.0.0.1", "localhost")  # the hub's own programs reach it here


@dataclass(frozen=True)
class Certificates:
    """An authority's certificate for sites, and the hub's own with its key, as texts (PEM)."""

    authority: bytes
    certificate: bytes
    key: bytes


def create(host: str) -> Certificates:
    """New ones; the authority's key is forgotten, since it has signed the one certificate that it is for."""
    x509, ec, hashes, serialization = _library()
    root_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root_name = _name(x509, f"Tacit hub {host}")
    root = _draft(x509, root_name, root_name, root_key.public_key())
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(_usage(x509, signs_certificates=True), critical=True)
    signed_root = root.sign(root_key, hashes.SHA384())
    server = _draft(x509, _name(x509, host), root_name, server_key.public_key())
    names = x509.SubjectAlternativeName([_general(x509, name) for name in dict.fromkeys((host, *EVERYWHERE))])
    server = server.add_extension(names, critical=False)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(_usage(x509, signs_certificates=False), critical=True)
    purpose = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
    server = server.add_extension(purpose, critical=False)
    signed = _identified(x509, server, server_key, root_key).sign(root_key, hashes.SHA384())
    pem, text = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, text)
    return Certificates(signed_root.public_bytes(pem), signed.public_bytes(pem), secret)


def _library() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise TacitError("certificates need the cryptography library: pip install 'tacit[flower]'") from error
    return x509, ec, hashes, serialization


def _name(x509: Any, text: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])


def _general(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _draft(x509: Any, subject: Any, issuer: Any, public_key: Any) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    # A site's clock may be behind.
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    return builder.not_valid_after(now + datetime.timedelta(days=DAYS))


def _usage(x509: Any, signs_certificates: bool) -> Any:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        decipher_only=False,
        **dict.fromkeys(others, False),
    )


def _identified(x509: Any, builder: Any, own: Any, authority: Any) -> Any:
    """With the ids of both keys, which strict checkers ask for."""
    mine = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return builder.add_extension(mine, critical=False).add_extension(above, critical=False)
