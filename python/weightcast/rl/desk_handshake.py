"""How the task server and a client prove that they have one job token: docs/rl.md, "The task server"."""

from __future__ import annotations

import dataclasses
import hmac
import secrets
from typing import Any, Literal, NamedTuple

import msgpack

from .. import ProtocolError
from .. import job_token as _job_token

_LABEL = "weightcast.rl desk 1"
_NONCE_BYTES = 32
_ADVICE = "give all processes one WEIGHTCAST_TOKEN"


class Token(NamedTuple):
    """The secret that all processes of a job share, as the other parts of weightcast have it."""

    secret: bytes
    configured: bool  # Otherwise it is the user's own, for loopback only.


def job_token() -> Token:
    """Raises InvalidArgument or Permission for a file that is no good."""
    return Token(*_job_token())


def new_nonce() -> bytes:
    return secrets.token_bytes(_NONCE_BYTES)


def nonce_of(message: dict[str, Any]) -> bytes:
    nonce = message.get("nonce")
    if not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
        raise ProtocolError(
            f"a message of type '{message['type']}' has no nonce; "
            "use one release of weightcast in all processes"
        )
    return nonce


@dataclasses.dataclass(frozen=True)
class Handshake:
    """What both sides have said before either proves anything. name, role: the client's."""

    name: str
    role: str
    client_nonce: bytes
    desk_nonce: bytes

    def proof(self, token: bytes, side: Literal["client", "desk"]) -> bytes:
        """Holds for this side of this one connection."""
        said = [_LABEL, side, self.name, self.role, self.client_nonce, self.desk_nonce]
        return hmac.digest(token, msgpack.packb(said, use_bin_type=True), "sha256")

    def check(self, token: bytes, side: Literal["client", "desk"], message: dict[str, Any]) -> None:
        """Raises ProtocolError if the proof in the message is not that of a side that has this token."""
        proof = message.get("proof")
        if not isinstance(proof, bytes) or not hmac.compare_digest(proof, self.proof(token, side)):
            raise ProtocolError(f"it has another job token; {_ADVICE}")
