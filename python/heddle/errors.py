"""What a call raises. Each class stands for one reason; the message names argument, value and legal values."""

from __future__ import annotations


class Error(RuntimeError):
    """Base of all errors of this package."""

    code = "unknown"


class UsageError(Error, ValueError):
    """An argument is wrong. Nothing was sent; the object stays usable."""

    code = "usage"


class RefusedError(Error):
    """Another rank refused its own arguments of this call. The next call works."""

    code = "refused"


class MismatchError(Error):
    """Ranks disagree on the call or on the settings. The buffer needs reset()."""

    code = "mismatch"


class TimeoutError_(Error, TimeoutError):
    """A peer missed the deadline. The buffer needs reset(). Also a builtin TimeoutError."""

    code = "timeout"


class FaultedError(Error):
    """The buffer met a fault earlier and waits for reset()."""

    code = "faulted"


class DestroyedError(Error):
    """Used after destroy(), or a peer destroyed its buffer."""

    code = "destroyed"


class OverflowError_(Error, OverflowError):
    """More rows than the caller's capacity. Also a builtin OverflowError."""

    code = "overflow"


class SystemError_(Error, OSError):
    """The operating system said no. Also a builtin OSError."""

    code = "system"


BY_CODE: dict[str, type[Error]] = {
    error.code: error
    for error in (
        UsageError,
        RefusedError,
        MismatchError,
        TimeoutError_,
        FaultedError,
        DestroyedError,
        OverflowError_,
        SystemError_,
    )
}
