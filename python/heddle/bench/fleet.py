"""Ranks as processes of this machine: starts them, passes their words on, and lets none outlive the command."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from .. import bootstrap
from ..errors import Error
from .options import Options

_GRACE = 5.0  # seconds for a process to end by itself
_MOMENT = 1.0  # seconds until the system has said that a process was killed


class RankFailed(Error):
    """A rank of the fleet ended before its work did."""

    code = "rank failed"


def run_ranks(options: Options, say: Callable[[str], None]) -> list[Any]:
    """Runs rank.Rank in `options.ranks` new processes; their reports, by rank. `say` hears what rank 0 is at."""
    return Fleet(options.ranks, options.timeout, _bench_rank, options).run(say)


def _bench_rank(group: bootstrap.Bootstrap, say: Callable[[str], None], options: Options) -> Any:
    from .rank import Rank

    return Rank(options, group, say).run()


class Fleet:
    """`size` processes that run body(bootstrap, say, *args), a function of a module."""

    def __init__(self, size: int, timeout: float, body: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        descriptor, port = bootstrap.tcp_listen()
        listener = socket.socket(fileno=descriptor)
        secret = bootstrap.make_secret()
        self._pipes: list[Connection] = []
        self._processes = []
        try:
            for rank in range(size):
                ours, theirs = context.Pipe(duplex=False)
                meeting = (rank, size, f"127.0.0.1:{port}", secret, timeout)
                # Rank 0 gets the socket itself, so that no other program can take its port meanwhile.
                passed = listener if rank == 0 else None
                process = context.Process(target=_serve, args=(meeting, passed, theirs, body, args), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        finally:
            listener.close()

    def run(self, say: Callable[[str], None]) -> list[Any]:
        """The results by rank. Raises RankFailed with what the first rank to fail said."""
        results: dict[int, Any] = {}
        open_pipes = dict(enumerate(self._pipes))
        try:
            while open_pipes:
                ready = wait(list(open_pipes.values()))
                for rank, pipe in [(rank, pipe) for rank, pipe in open_pipes.items() if pipe in ready]:
                    self._hear(rank, pipe, open_pipes, results, say)
            return [results[rank] for rank in range(len(self._pipes))]
        finally:
            self._end()

    def _hear(self, rank: int, pipe: Connection, open_pipes: dict, results: dict, say: Callable[[str], None]) -> None:
        try:
            kind, content = pipe.recv()
        except EOFError:
            del open_pipes[rank]
            if rank not in results:
                raise RankFailed(self._epitaph(rank)) from None
            return
        if kind == "step":
            say(content)
        elif kind == "result":
            results[rank] = content
        else:
            raise RankFailed(self._first_cause(rank, content))

    def _first_cause(self, rank: int, content: str) -> str:
        """A rank that was killed says nothing, and pulls the others along: it is named if there is one."""
        deadline = time.monotonic() + _MOMENT
        while time.monotonic() < deadline:
            for other, process in enumerate(self._processes):
                if process.exitcode is not None and process.exitcode < 0:
                    return f"{self._epitaph(other)}; rank {rank} then said: {content}"
            time.sleep(0.02)
        return f"rank {rank}: {content}"

    def _epitaph(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(_GRACE)
        code = process.exitcode
        if code is not None and code < 0:
            return f"rank {rank} (process {process.pid}) was killed by {signal.Signals(-code).name}"
        return f"rank {rank} (process {process.pid}) ended with status {code} before its work was done"

    def _end(self) -> None:
        for process in self._processes:
            process.join(_GRACE if process.exitcode is None and not self._failed() else 0)
            if process.exitcode is None:
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def _failed(self) -> bool:
        return any(process.exitcode not in (None, 0) for process in self._processes)


def _serve(
    meeting: tuple, listener: socket.socket | None, pipe: Connection, body: Callable[..., Any], args: tuple
) -> None:
    """The main function of a rank's process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the command's to answer
    rank, size, address, secret, timeout = meeting
    try:
        descriptor = -1 if listener is None else listener.detach()
        group = bootstrap.tcp(rank, size, address, secret, timeout, listener=descriptor)
        say = (lambda text: pipe.send(("step", text))) if rank == 0 else (lambda text: None)
        pipe.send(("result", body(group, say, *args)))
    except Error as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))
        os._exit(1)
