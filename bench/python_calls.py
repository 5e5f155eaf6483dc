#!/usr/bin/env python3
"""Prints what one call costs from Python, in microseconds of this thread's processor time: one rank, one token, tensors
of torch. On a CPU the rows are moved within the call; the second column, with rows of 128 elements, is what is left
without them. On a GPU exact sizes make the thread wait, and look: the last column is how long, and part of the others.

    bench/python_calls.py [CALLS] [--device cuda] [--profile NAME]    NAME: one of the printed calls
"""

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

import deep_ep
import heddle
import torch

EXPERTS, TOPK, MOST, GROUP = 32, 8, 1, 20
HIDDEN = (7168, 128)


Calls = dict[str, Callable[[], Any]]
Buffers = list[heddle.Buffer]


def heddle_calls(device: str, hidden: int) -> tuple[Calls, Buffers]:
    buffer = heddle.Buffer(heddle.in_process(1)[0], experts=EXPERTS, max_tokens=MOST, device=device)
    ids, weights, x = batch(device, hidden)
    plan = buffer.plan(ids)
    handle = buffer.dispatch(plan, x, weights=weights).handle
    slab = {"layout": "slab", "quantise": "fp8"}
    return {
        "plan": lambda: buffer.plan(ids),
        "dispatch": lambda: buffer.dispatch(plan, x, weights=weights).x,
        "combine": lambda: buffer.combine(handle, x).x,
        "slab dispatch": lambda: buffer.dispatch(plan, x, **slab).x,
    }, [buffer]


def deep_ep_calls(device: str, hidden: int) -> tuple[Calls, Buffers]:
    buffer = deep_ep.Buffer(heddle.in_process(1)[0], 0, 0, low_latency_mode=True, num_qps_per_rank=1)
    ids, weights, x = batch(device, hidden)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)

    def dispatch(worst: int = 0, is_async: bool = False) -> Any:
        return buffer.dispatch(
            x,
            num_worst_tokens=worst,
            async_finish=is_async,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=ids,
            topk_weights=weights,
        )

    def low_latency(hook: bool) -> Any:
        sent = buffer.low_latency_dispatch(x, ids, MOST, EXPERTS, return_recv_hook=hook)
        if hook:
            sent[-1]()
        return sent

    handle = dispatch()[4]
    slab, _, slab_handle, _, _ = buffer.low_latency_dispatch(x, ids, MOST, EXPERTS, use_fp8=False)
    return {
        "V1 get_dispatch_layout": lambda: buffer.get_dispatch_layout(ids, EXPERTS),
        "V1 dispatch": dispatch,
        "V1 dispatch, num_worst_tokens": lambda: dispatch(MOST),
        "the same, asynchronous": lambda: dispatch(MOST, True)[-1].current_stream_wait(),
        "V1 dispatch, handle": lambda: buffer.dispatch(x, handle=handle),
        "V1 combine": lambda: buffer.combine(x, handle),
        "low_latency_dispatch": lambda: low_latency(False),
        "low_latency_dispatch, hook": lambda: low_latency(True),
        "low_latency_combine": lambda: buffer.low_latency_combine(slab, ids, weights, slab_handle),
    }, buffer.runtime._all


def batch(device: str, hidden: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randperm(EXPERTS)[None, :TOPK].contiguous().to(device)
    return ids, torch.rand(1, TOPK).to(device), torch.randn(1, hidden).to(torch.bfloat16).to(device)


def settle() -> None:
    """Until a GPU has done what it was given: its queue must not fill."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measure(call: Callable[[], Any], calls: int) -> tuple[float, float]:
    """(median, 90th percentile) of groups of calls: reading the clock may take longer than one."""
    times = []
    for _ in range(calls // GROUP):
        began = time.thread_time_ns()
        for _ in range(GROUP):
            call()
        times.append((time.thread_time_ns() - began) / 1000 / GROUP)
        settle()
    return statistics.median(times), statistics.quantiles(times, n=10)[8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int, nargs="?", default=3000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = [make(options.device, hidden) for hidden in HIDDEN for make in (heddle_calls, deep_ep_calls)]
    both = [{**made[i][0], **made[i + 1][0]} for i in (0, 2)]
    buffers = [buffer for _, some in made for buffer in some]
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(measure, both[1][options.profile], options.calls)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        return
    print(f"{'us':30}{f'hidden {HIDDEN[0]}':>14}{f'hidden {HIDDEN[1]}':>14}{'90 % below':>14}{'waiting':>10}")
    for name in both[0]:
        numbers = []
        for calls in both:
            measure(calls[name], 100)
            before = waited(buffers)
            numbers.append(measure(calls[name], options.calls))
        waiting = (waited(buffers) - before) / options.calls
        print(f"{name:30}{numbers[0][0]:14.1f}{numbers[1][0]:14.1f}{numbers[1][1]:14.1f}{waiting:10.1f}", flush=True)


def waited(buffers: Buffers) -> float:
    return sum(buffer.metrics().waiting_nanoseconds for buffer in buffers) / 1000


if __name__ == "__main__":
    main()
