"""The hub's certificates: a private authority, and the server certificate that it signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Any

from tacit.errors import TacitError

VALID_DAYS = 825  # the most that common programs accept for a server certificate
AUTHORITY_DAYS = 3650  # every site has the authority's certificate, so it should rarely change
LOCAL_HOSTS = ("127.0.0.1", "localhost")  # where programs on the hub's machine reach it


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def create_authority(host: str) -> Pair:
    """A new authority for the hub at a host. Sites get its certificate; its key signs the hub's certificates."""
    x509, ec, hashes, serialization = _cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    # The number tells this authority from an earlier one of the same hub.
    name = _name(x509, f"Tacit hub {host[:40]} {x509.random_serial_number() % 10**8:08}")
    builder = _builder(x509, name, name, key.public_key(), _in_days(AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(x509, signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    signed = builder.sign(key, hashes.SHA384())
    return Pair(signed.public_bytes(serialization.Encoding.PEM), _key_pem(serialization, key))


def issue(host: str, authority: Pair) -> Pair:
    """A new certificate for the hub at a host, with a new key; the authority's file may hold several certificates."""
    x509, ec, hashes, serialization = _cryptography()
    signer = serialization.load_pem_private_key(authority.key, password=None)
    root = _matching(x509, authority.certificate, signer.public_key())
    key = ec.generate_private_key(ec.SECP384R1())
    until = min(_in_days(VALID_DAYS), root.not_valid_after_utc)
    builder = _builder(x509, _name(x509, host), root.subject, key.public_key(), until)
    names = x509.SubjectAlternativeName([_alternative_name(x509, name) for name in dict.fromkeys((host, *LOCAL_HOSTS))])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(x509, signs_certificates=False), critical=True)
    purpose = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(purpose, critical=False)
    signed = _with_key_ids(x509, builder, key, signer).sign(signer, hashes.SHA384())
    return Pair(signed.public_bytes(serialization.Encoding.PEM), _key_pem(serialization, key))


def valid_until(certificate: bytes) -> datetime.datetime:
    """When a certificate ends."""
    x509, *_ = _cryptography()
    until: datetime.datetime = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return until


def _matching(x509: Any, certificates: bytes, key: Any) -> Any:
    """The certificate of a public key."""
    found = [each for each in x509.load_pem_x509_certificates(certificates) if each.public_key() == key]
    if not found:
        raise TacitError(
            "the authority's key does not belong to its certificate", "restore both", code="hub.authority-mismatch"
        )
    return found[0]


def _key_pem(serialization: Any, key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, *form)
    return pem


def _in_days(days: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise TacitError(
            "certificates need the cryptography package", "pip install 'tacit[flower]'", code="hub.no-cryptography"
        ) from error
    return x509, ec, hashes, serialization


def _name(x509: Any, text: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])


def _alternative_name(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(x509: Any, subject: Any, issuer: Any, public_key: Any, until: datetime.datetime) -> Any:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    # A site's clock may be behind.
    return builder.not_valid_before(_in_days(-1)).not_valid_after(until)


def _usage(x509: Any, signs_certificates: bool) -> Any:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        decipher_only=False,
        **dict.fromkeys(others, False),
    )


def _with_key_ids(x509: Any, builder: Any, key: Any, authority: Any) -> Any:
    """Add the ids of both keys, which strict verifiers require."""
    subject = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return builder.add_extension(subject, critical=False).add_extension(issuer, critical=False)
