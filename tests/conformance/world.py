"""Rank processes that serve many tests: each test gives them a function of its module to run, all at once.

def body(rank, tokens): ...                  # in every process; asserts there fail the test
world.run(body, 5, ranks=3)                  # [what each rank returned]
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

PATIENCE = 60.0  # seconds; only a bug reaches it
DEADLINE = "40"  # seconds that a rank waits for another in a call


class RankError(Exception):
    """What a rank raised."""


@dataclasses.dataclass
class Rank:
    """What a body knows of itself. `group` has the first `size` processes."""

    rank: int
    size: int
    group: Any
    device: torch.device

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(rank: int, size: int, port: int, device: str, path: list[str], pipe: Any) -> None:
    sys.path[:] = path
    os.environ.setdefault("HEDDLE_DEEP_EP_TIMEOUT", DEADLINE)
    torch.set_num_threads(1)
    backend = "nccl" if device == "cuda" and torch.cuda.device_count() >= size else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    groups = {size: dist.group.WORLD}
    for smaller in range(1, size):
        groups[smaller] = dist.new_group(list(range(smaller)))
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    at = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")
    torch.set_default_device(at)
    while (order := pipe.recv()) is not None:
        module, name, ranks, args = order
        try:
            body = getattr(importlib.import_module(module), name)
            result = body(Rank(rank, ranks, groups[ranks], at), *args)
            pipe.send_bytes(pickle.dumps((True, result)))
        except BaseException as error:
            pipe.send_bytes(pickle.dumps((False, f"rank {rank}: {error!r}\n{traceback.format_exc()}")))
    dist.destroy_process_group()


class World:
    """`size` processes, started at the first use, and again after a failure that may have left them in disorder."""

    def __init__(self, size: int, device: str) -> None:
        self.size = size
        self.device = device
        self._started: list[tuple[Any, Any]] = []

    def run(self, body: Callable[..., Any], *args: Any, ranks: int | None = None) -> list[Any]:
        """body(rank, *args) in the first `ranks` processes (default: all, up to 4, which most tests have batches for).
        Raises RankError with what they raised."""
        ranks = min(self.size, 4) if ranks is None else ranks
        self._start()
        for _, pipe in self._started[:ranks]:
            with contextlib.suppress(OSError):  # of a rank that died; its answer says so
                pipe.send((body.__module__, body.__name__, ranks, args))
        deadline = time.monotonic() + PATIENCE
        answers = [self._answer(pipe, deadline) for _, pipe in self._started[:ranks]]
        failed = [text for well, text in answers if not well]
        if failed:
            self.stop()
            raise RankError("\n".join(failed))
        return [result for _, result in answers]

    def _answer(self, pipe: Any, deadline: float) -> tuple[bool, Any]:
        left = max(deadline - time.monotonic(), 0.1)
        try:
            return pickle.loads(pipe.recv_bytes()) if pipe.poll(left) else (False, "a rank said nothing")
        except (EOFError, OSError):
            return False, "a rank died"

    def _start(self) -> None:
        if self._started:
            return
        context = multiprocessing.get_context("spawn")
        port = free_port()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            args = (rank, self.size, port, self.device, sys.path, theirs)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()  # so that the end of a rank shows at ours
            self._started.append((process, ours))

    def stop(self) -> None:
        for process, pipe in self._started:
            if process.is_alive():
                try:
                    pipe.send(None)
                except OSError:
                    pass
        for process, _ in self._started:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._started = []
