"""What a process of a World does: joins the others, then runs the bodies of tests until it is told to end."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

DEADLINE = "40"  # seconds that a rank waits for another in a call


@dataclasses.dataclass
class Rank:
    """What a body knows of itself. `group` has the first `size` processes."""

    rank: int
    size: int
    group: Any
    device: torch.device

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


@dataclasses.dataclass
class Place:
    """Of a rank in its world. `port`: of the store at which ranks meet; `words`: the file that gets what it prints."""

    rank: int
    size: int
    device: str
    port: int
    patience: float
    words: str


def serve(place: Place, pipe: Any) -> None:
    """Answers (True, None) once it is there, then each order: (True, result), or (False, why)."""
    _print_to(place.words)
    rank = RankProcess(place)
    if not _answer(pipe, place.rank, rank.join):
        return
    while (order := pipe.recv()) is not None:
        _answer(pipe, place.rank, rank.run, *order)
    dist.destroy_process_group()


def _print_to(words: str) -> None:
    """Also what C++ and the loader print."""
    file = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _answer(pipe: Any, rank: int, call: Callable[..., Any], *args: Any) -> bool:
    """True if call() came to its end."""
    try:
        pipe.send_bytes(pickle.dumps((True, call(*args))))
        return True
    except BaseException as error:
        pipe.send_bytes(pickle.dumps((False, f"rank {rank}: {error!r}\n{traceback.format_exc()}")))
        return False


class RankProcess:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._groups: dict[int, Any] = {}  # by size: of the first processes
        self._device = torch.device("cpu")

    def join(self) -> None:
        os.environ.setdefault("HEDDLE_DEEP_EP_TIMEOUT", DEADLINE)
        torch.set_num_threads(1)
        place = self._place
        if place.device == "cuda":
            self._device = _gpu_of(place.rank)
        torch.set_default_device(self._device)
        store = dist.TCPStore("127.0.0.1", place.port, is_master=False, timeout=timedelta(seconds=place.patience))
        backend = "nccl" if place.device == "cuda" and torch.cuda.device_count() >= place.size else "gloo"
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size)
        self._groups = {size: dist.new_group(list(range(size))) for size in range(1, place.size)}
        self._groups[place.size] = dist.group.WORLD

    def run(self, module: str, name: str, ranks: int, args: tuple[Any, ...]) -> Any:
        body = getattr(importlib.import_module(module), name)
        try:
            return body(Rank(self._place.rank, ranks, self._groups[ranks], self._device), *args)
        finally:
            if self._device.type == "cuda":  # many processes share its memory
                gc.collect()
                torch.cuda.empty_cache()


def _gpu_of(rank: int) -> torch.device:
    """Ranks share the GPUs that there are. What cannot be had there shows now, not in the first test."""
    if not (gpus := torch.cuda.device_count()):
        raise RuntimeError("--device cuda: torch finds no GPU here")
    device = torch.device("cuda", rank % gpus)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    return device
