"""How ranks find one another before they share memory: rank, size and an all-gather are all that Heddle asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from . import _core
from ._core import Bootstrap, make_secret
from .errors import UsageError

Made = TypeVar("Made")

__all__ = ["Bootstrap", "from_all_gather", "from_group", "in_process", "make_secret", "tcp", "tcp_listen"]


def in_process(size: int, timeout: float = 100.0) -> list[Bootstrap]:
    """One Bootstrap for each of `size` ranks that are threads of this process; each goes to its own thread.

    timeout  how long a collective call waits for the others, seconds
    """
    return _core.in_process(size, timeout)


def tcp(
    rank: int, size: int, address: str, secret: str = "", timeout: float = 100.0, *, listener: int = -1
) -> Bootstrap:
    """Ranks that are processes, of one host or several. Rank 0 listens, the others come to it. Collective.

    address   "host:port" of rank 0, the same on every rank
    secret    what the ranks prove to one another that they hold: make_secret(), or any text; "" = HEDDLE_SECRET of the
              environment
    timeout   how long this and each later collective call waits for the others, seconds
    listener  rank 0: the descriptor from tcp_listen(), which the group then closes; -1 = listen on address

    Raises TimeoutError_ naming the ranks that did not come, MismatchError for another secret, size or rank.
    """
    host, port = _split(address)
    return _in_background(
        lambda: _core.tcp(rank=rank, size=size, host=host, port=port, secret=secret, listener=listener, timeout=timeout)
    )


def tcp_listen(host: str = "127.0.0.1", port: int = 0) -> tuple[int, int]:
    """A socket that listens for rank 0's peers: (descriptor, port). Port 0 = a free one, to be told to the peers."""
    return _core.tcp_listen(host, port)


def from_all_gather(rank: int, size: int, all_gather: Callable[[bytes], Sequence[bytes]]) -> Bootstrap:
    """A group whose all-gather the caller has: `all_gather(mine)` returns every rank's bytes, by rank.

    With mpi4py: from_all_gather(comm.Get_rank(), comm.Get_size(), comm.allgather)
    """
    bootstrap = _core.caller_bootstrap(rank, size, all_gather)
    bootstrap.calls_python = True  # type: ignore[attr-defined]
    return bootstrap


def from_group(group: Any) -> Bootstrap:
    """The ranks of a torch.distributed process group of any backend; None = the default group."""
    import torch.distributed as dist

    def all_gather(mine: bytes) -> list[bytes]:
        everyone: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, mine, group=group)
        return everyone

    return from_all_gather(dist.get_rank(group), dist.get_world_size(group), all_gather)


def as_bootstrap(group: Any) -> Bootstrap:
    """What Buffer takes: a Bootstrap, or a torch process group."""
    if isinstance(group, Bootstrap):
        return group
    if all(callable(getattr(group, name, None)) for name in ("rank", "size")):
        return from_group(group)
    raise UsageError(
        f"Buffer: group is a {type(group).__name__}, legal: a heddle.Bootstrap (in_process, tcp, from_all_gather), or "
        "a torch.distributed process group"
    )


def patiently(bootstrap: Bootstrap, make: Callable[[], Made]) -> Made:
    """Runs a construction that waits for other ranks so that Ctrl-C ends it. A group of the caller's runs Python, which
    hears signals by itself, and may need the caller's thread."""
    return make() if getattr(bootstrap, "calls_python", False) else _in_background(make)


def _in_background(make: Callable[[], Made]) -> Made:
    """Only Python's main thread hears signals, and not while C++ waits in it: another thread waits in C++. What an
    interrupted call would have made is dropped when it comes."""
    if threading.current_thread() is not threading.main_thread():
        return make()
    made: list[Made] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True, name="heddle-bootstrap")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"tcp: address is '{address}', legal: 'host:port' with a port up to 65535")
    return host.strip("[]"), int(port)
