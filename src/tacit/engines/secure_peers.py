"""Who takes part in secure aggregation: the identity key of each client, and where a client records what it answers."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from tacit.engines.secure_sessions import Sessions, session_prefix
from tacit.protect.signing import Signer, Verifier


@dataclass(frozen=True)
class Peers:
    """Real clients with keys of their own. In a simulation there are none: keys follow from the seed."""

    run: str
    identities: Mapping[int, Verifier]  # of every client that may take part
    signer: Signer | None = None  # this client's own key; None at the server
    sessions: Sessions | None = None  # this client's own record; None at the server

    def new_session(self, round: int) -> str:
        """A name that no session had before."""
        return session_prefix(self.run, round) + secrets.token_hex(16)
