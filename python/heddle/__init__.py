"""Heddle: dispatch and combine for mixtures of experts.

    with heddle.Buffer(group, experts=256, max_tokens=4096) as buffer:
        plan = buffer.plan(ids)
        received = buffer.dispatch(plan, x)
        combined = buffer.combine(received.handle, experts(received.x))

Importing it needs no GPU, no CUDA and no torch, starts no thread and touches no device. heddle.torch has the autograd
functions.
"""

from ._core import Metrics, OperationMetrics
from ._core import version as __version__
from .bootstrap import Bootstrap, from_all_gather, from_group, in_process, make_secret, tcp, tcp_listen
from .buffer import Buffer
from .errors import (
    DestroyedError,
    Error,
    FaultedError,
    MismatchError,
    OverflowError_,
    RefusedError,
    SystemError_,
    TimeoutError_,
    UsageError,
)
from .results import Combined, Received, Split
from .route import Handle, Plan

__all__ = [
    "Bootstrap",
    "Buffer",
    "Combined",
    "DestroyedError",
    "Error",
    "FaultedError",
    "Handle",
    "Metrics",
    "MismatchError",
    "OperationMetrics",
    "OverflowError_",
    "Plan",
    "Received",
    "RefusedError",
    "Split",
    "SystemError_",
    "TimeoutError_",
    "UsageError",
    "__version__",
    "from_all_gather",
    "from_group",
    "in_process",
    "make_secret",
    "tcp",
    "tcp_listen",
]
