"""Ranks with torch tensors on GPUs: threads, each with a stream of its own and a GPU of its own or a share of one.

Before a thread waits for its GPU in torch it lets its stream end: torch waits with locks held that the other ranks'
launches need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")

EXPERTS, TOPK, TOKENS, HIDDEN = 8, 3, 29, 256


def settle() -> None:
    """Until all of the current stream is done."""
    stream = torch.cuda.current_stream()
    deadline = time.monotonic() + ranks.PATIENCE
    while not stream.query():
        assert time.monotonic() < deadline
        time.sleep(0.0002)


def host(tensor: Any) -> Any:
    settle()
    return tensor.cpu()


def on_gpus(size: int, body: Callable[..., Any], **settings: Any) -> list[Any]:
    """body(buffer, meet) on `size` threads; meet() waits for the other ranks."""
    met = threading.Barrier(size)

    def run(bootstrap: heddle.Bootstrap) -> Any:
        gpu = bootstrap.rank % torch.cuda.device_count()
        torch.cuda.set_device(gpu)
        with torch.cuda.stream(torch.cuda.Stream()):
            with heddle.Buffer(bootstrap, device="cuda", timeout=ranks.PATIENCE, **settings) as buffer:
                assert buffer.device == f"cuda:{gpu}"
                result = body(buffer, lambda: met.wait(ranks.PATIENCE))
                settle()
                bootstrap.barrier("leaving together")
                return result

    return ranks.all_well(ranks.on_threads(size, run))


def batch(rank: int, dtype: Any = torch.bfloat16, wide: bool = False) -> tuple[Any, Any, Any]:
    """x, ids, weights of a rank, on the CPU; whole numbers."""
    dice = torch.Generator().manual_seed(rank + 1)
    x = torch.randint(-4, 5, (TOKENS, HIDDEN), generator=dice).to(dtype)
    ids = torch.randint(-1, EXPERTS, (TOKENS, TOPK), generator=dice, dtype=torch.int64 if wide else torch.int32)
    weights = torch.randint(1, 5, (TOKENS, TOPK), generator=dice).float() / 4
    return x, ids, weights


def bits(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor


def same(seen: Any, wanted: Any) -> bool:
    if seen is None or wanted is None:
        return seen is wanted
    return seen.dtype == wanted.dtype and seen.shape == wanted.shape and torch.equal(bits(host(seen)), bits(wanted))


def round_trip(buffer: heddle.Buffer, tensors: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    x, ids, weights = tensors
    received = buffer.dispatch(buffer.plan(ids), x, weights=weights, zero_padding=True, **options)
    rows = received.x.to(torch.float32) if received.x.dtype == torch.float8_e4m3fn else received.x
    weighted = options["layout"] != "token_major"
    return received, buffer.combine(received.handle, rows, weighted=weighted)
