"""What secure aggregation asks of identity keys, whatever their kind."""

from typing import Protocol


class Signer(Protocol):
    """A private identity key."""

    def sign(self, data: bytes, /) -> bytes:
        """The signature of these bytes."""
        ...


class Verifier(Protocol):
    """A public identity key."""

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """Raise cryptography's InvalidSignature unless the signature of these bytes is by the private key."""
        ...
