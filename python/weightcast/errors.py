"""The exceptions. Each is an `Error` and has a `code`, the same text as in logs and JSON."""

from __future__ import annotations


class Error(RuntimeError):
    """A call of weightcast failed; the message says what was wrong and what to do."""

    code = "internal"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class Unavailable(Error, ConnectionError):
    """A lane, peer or service cannot be reached now."""

    code = "unavailable"


class PeerDead(Error, ConnectionError):
    """The peer process has exited, or sent no heartbeat for a lease."""

    code = "peer dead"


class Fenced(Error):
    """The grant under which the work ran has been revoked."""

    code = "fenced"


class TimedOut(Error, TimeoutError):
    """The deadline of the call passed."""

    code = "timed out"


class Cancelled(Error):
    """The caller cancelled."""

    code = "cancelled"


class Exhausted(Error, MemoryError):
    """Memory, descriptors, queue slots or disk ran out."""

    code = "exhausted"


class Permission(Error, PermissionError):
    """The token, the operating system or a grant forbids it."""

    code = "permission"


class OutOfBounds(Error, IndexError):
    """Outside a region or a tensor."""

    code = "out of bounds"


class InvalidArgument(Error, ValueError):
    """The input is wrong."""

    code = "invalid argument"


class ProtocolError(Error):
    """The peer said something that the protocol does not allow."""

    code = "protocol"


class Corrupt(Error):
    """Bytes fail their checksum or their format."""

    code = "corrupt"


class UpdateAborted(Error):
    """An update was not committed as the policy asks.

    engine, rank: which engine or rank caused it; None if a trainer did.
    """

    code = "aborted"

    def __init__(
        self,
        reason: str,
        version: int,
        cause: Error | None = None,
        engine: str | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(reason, cause.code if cause is not None else None)
        self.reason = reason
        self.version = version
        self.engine = engine
        self.rank = rank

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps all but the cause when it is sent to another process (pickle, Ray)."""
        return type(self), (self.reason, self.version, None, self.engine, self.rank), self.__dict__


_CLASSES = {cls.code: cls for cls in Error.__subclasses__() if cls is not UpdateAborted}


def error_for(code: str, message: str) -> Error:
    """The exception for a code of the core."""
    return _CLASSES.get(code, Error)(message, code)
