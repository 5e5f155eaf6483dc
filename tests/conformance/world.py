"""Rank processes that serve many tests: each test gives them a function of its module to run, all at once.

def body(rank, tokens): ...                  # in every process; asserts there fail the test
world.run(body, 5, ranks=3)                  # [what each rank returned]
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import pickle
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rank_process import Place, serve

PATIENCE = {"cpu": 60.0, "cuda": 150.0}  # seconds that a test may take; processes that share a GPU take turns on it
START_PATIENCE = 150.0  # seconds; GPUs give many processes their contexts one after the other
GRACE = 10.0  # seconds that the others have once a rank has failed: most of them wait for it
LAST_WORDS = 25  # lines


class RankError(Exception):
    """What a rank raised, or how it died."""


@dataclasses.dataclass
class Started:
    """A process as the World sees it."""

    rank: int
    process: Any
    pipe: Any
    words: Path

    def tell(self, order: Any) -> None:
        with contextlib.suppress(OSError):  # of a rank that died; its answer says so
            self.pipe.send(order)

    def answer(self) -> tuple[bool, Any]:
        """(True, result), or (False, why). To be asked once its pipe has something."""
        try:
            well, said = pickle.loads(self.pipe.recv_bytes())
            return (True, said) if well else (False, self.with_last_words(said))
        except (EOFError, OSError):
            return False, self.with_last_words(f"rank {self.rank} died: {self._end()}")

    def _end(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"exit status {code}"
        return signal.Signals(-code).name

    def with_last_words(self, text: str) -> str:
        words = self.words.read_text(errors="replace").splitlines() if self.words.exists() else []
        return "\n".join([text, *(f"  rank {self.rank} | {line}" for line in words[-LAST_WORDS:])])

    def end(self, patience: float) -> None:
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _memory_of_gpus(device: str) -> str:
    """What may be why."""
    if device != "cuda":
        return ""
    query = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
        return f" (memory of GPUs in use, of all: {'; '.join(said.splitlines())})"
    return ""


class World:
    """`size` processes, started at the first use, and again after a failure that may have left them in disorder."""

    def __init__(self, size: int, device: str) -> None:
        self.size = size
        self.device = device
        self._started: list[Started] = []
        self._store: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="deep_ep_ranks_")

    def run(self, body: Callable[..., Any], *args: Any, ranks: int | None = None) -> list[Any]:
        """body(rank, *args) in the first `ranks` processes (default: all, up to 4, which most tests have batches for).
        Raises RankError with what they raised."""
        ranks = min(self.size, 4) if ranks is None else ranks
        self._start()
        asked = self._started[:ranks]
        for rank in asked:
            rank.tell((body.__module__, body.__name__, ranks, args))
        return self._answers(asked, PATIENCE[self.device])

    def _answers(self, ranks: list[Started], patience: float) -> list[Any]:
        answers, deadline = {}, time.monotonic() + patience
        waiting = {rank.pipe: rank for rank in ranks}
        while waiting and (ready := connection.wait(list(waiting), max(deadline - time.monotonic(), 0))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                answers[rank.rank] = rank.answer()
                if not answers[rank.rank][0]:
                    deadline = min(deadline, time.monotonic() + GRACE)
        for rank in waiting.values():
            answers[rank.rank] = False, rank.with_last_words(f"rank {rank.rank} said nothing")
        failed = [said for _, (well, said) in sorted(answers.items()) if not well]
        if failed:
            self.stop()
            raise RankError("\n".join(failed))
        return [answers[rank.rank][1] for rank in ranks]

    def _start(self) -> None:
        """Processes are forked from one that has imported torch, which takes each seconds."""
        if self._started:
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "pytest"])
        # The store is this process's, so that its port is nobody else's between its choice and its use.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._started = [self._start_rank(context, rank) for rank in range(self.size)]
        try:
            self._answers(self._started, START_PATIENCE)
        except RankError as error:
            raise RankError(f"the ranks did not start{_memory_of_gpus(self.device)}\n{error}") from None

    def _start_rank(self, context: Any, rank: int) -> Started:
        ours, theirs = context.Pipe()
        words = Path(self._folder.name) / f"rank_{rank}"
        words.unlink(missing_ok=True)
        place = Place(rank, self.size, self.device, self._store.port, START_PATIENCE, str(words))
        process = context.Process(target=serve, args=(place, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the end of a rank shows at ours
        return Started(rank, process, ours, words)

    def stop(self) -> None:
        for rank in self._started:
            rank.tell(None)
        for rank in self._started:
            rank.end(5)
        self._started = []
        self._store = None
