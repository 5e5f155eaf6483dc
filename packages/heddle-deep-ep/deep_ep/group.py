"""The ranks of a buffer: a torch process group of any backend, or an mpi4py communicator."""

from __future__ import annotations

import os
from typing import Any

import heddle


def bootstrap_of(group: Any, comm: Any = None) -> heddle.Bootstrap:
    """How the ranks meet; nothing but their numbers and an all-gather of objects is used.

    Raises ValueError if both are None, or if neither kind is known.
    """
    if group is not None:
        return _of_group(group)
    if comm is None:
        raise ValueError("group is None and comm is None, legal: a torch process group, or an mpi4py communicator")
    missing = [name for name in ("Get_rank", "Get_size", "allgather") if not callable(getattr(comm, name, None))]
    if missing:
        raise ValueError(
            f"comm is a {type(comm).__name__} without {', '.join(missing)}, legal: an mpi4py.MPI.Comm or its like"
        )
    return heddle.from_all_gather(comm.Get_rank(), comm.Get_size(), comm.allgather)


def _of_group(group: Any) -> heddle.Bootstrap:
    if isinstance(group, heddle.Bootstrap):
        return group
    if not all(callable(getattr(group, name, None)) for name in ("rank", "size")):
        raise ValueError(f"group is a {type(group).__name__}, legal: a torch.distributed process group")
    return heddle.bootstrap.from_group(group)


def domains_of(ranks: int, domain: int | None = None) -> tuple[int, int]:
    """(domains, ranks of each). Heddle's ranks are of one host now: one domain, unless `domain` says otherwise."""
    if domain is None:
        return 1, ranks
    if domain < 1 or ranks % domain:
        raise ValueError(f"ranks per domain = {domain}, legal: a divisor of the group's size {ranks}")
    return ranks // domain, domain


def get_physical_domain_size(group: Any) -> tuple[int, int]:
    """(domains joined by a network, ranks that reach one another by load and store)."""
    return domains_of(group.size())


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> tuple[int, int]:
    """(scale-out, scale-up) sizes that a buffer works with."""
    return domains_of(group.size())


def default_timeout() -> float:
    """Seconds that V1 calls wait for a peer: HEDDLE_DEEP_EP_TIMEOUT of the environment, else 100."""
    text = os.environ.get("HEDDLE_DEEP_EP_TIMEOUT", "100")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"HEDDLE_DEEP_EP_TIMEOUT is '{text}', legal: seconds, more than 0")
    return seconds
