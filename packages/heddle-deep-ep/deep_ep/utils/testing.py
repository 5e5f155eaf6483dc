"""Timing of test programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def bench(
    fn: Callable[[], Any], num_warmups: int = 50, num_tests: int = 50, post_fn: Callable[[], Any] | None = None
) -> tuple[float, float, float]:
    """(mean, least, most) seconds of a call, launches included; the first of the tests is left out."""
    for _ in range(num_warmups):
        fn()
    times = []
    for _ in range(max(num_tests, 2)):
        _synchronize()
        began = time.perf_counter()
        fn()
        _synchronize()
        times.append(time.perf_counter() - began)
        if post_fn is not None:
            post_fn()
    kept = times[1:]
    return sum(kept) / len(kept), min(kept), max(kept)


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
) -> Any:
    """Mean seconds of each kernel whose name holds the given text: a float for one name, a tuple for several. Without
    a GPU the seconds of a whole call stand for each."""
    names = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    if torch.cuda.is_initialized():
        seconds = _kernel_seconds(fn, names, num_tests, trace_path)
    else:
        seconds = (bench(fn, 1, num_tests)[0],) * len(names)
    return seconds[0] if isinstance(kernel_names, str) else seconds


def _kernel_seconds(
    fn: Callable[[], Any], names: tuple[str, ...], num_tests: int, trace_path: str | None
) -> tuple[float, ...]:
    fn()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(num_tests):
            fn()
        torch.cuda.synchronize()
    if trace_path is not None:
        profile.export_chrome_trace(trace_path)
    seconds = []
    for name in names:
        found = [event for event in profile.key_averages() if name in event.key]
        calls = sum(event.count for event in found)
        seconds.append(sum(event.device_time_total for event in found) / max(calls, 1) * 1e-6)
    return tuple(seconds)
