#!/usr/bin/env python3
"""Where the time of a call from Python goes: the same low-latency dispatch with less and less around it, and what torch
takes for the things that it does. Microseconds of this thread's processor time, one rank, one token. What CUDA's own
calls take on a GPU's host is told by `heddle_cuda_bench host`.

    bench/python_parts.py [CALLS] [--device cuda]
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import deep_ep
import heddle
import torch
from heddle.arguments import dispatch_options
from python_calls import EXPERTS, HIDDEN, MOST, batch, measure

Line = tuple[str, Callable[[], Any]]
NOTHING = (None,) * 6


def calls(device: str, hidden: int) -> Iterator[Line]:
    """From the outside to the inside."""
    ids, _, x = batch(device, hidden)
    outer = deep_ep.Buffer(heddle.in_process(1)[0], 0, 0, low_latency_mode=True, num_qps_per_rank=1)
    yield "low_latency_dispatch", lambda: outer.low_latency_dispatch(x, ids, MOST, EXPERTS)
    yield "its hook, called", lambda: outer.low_latency_dispatch(x, ids, MOST, EXPERTS, return_recv_hook=True)[-1]()
    inner = heddle.Buffer(heddle.in_process(1)[0], experts=EXPERTS, device=device)
    options = dispatch_options(layout="slab", quantise="fp8", max_tokens=MOST)
    yield "heddle.Buffer.dispatch_slab", lambda: inner.dispatch_slab(ids, x, options)
    received = inner._core.dispatch(ids, x, *NOTHING, None, options, stream_of(device), 0)
    yield "a tensor of a result", lambda: received.num_per_expert(True)
    yield "a tensor with other strides", lambda: received.scales(True)
    yield "C++ with its tensors", lambda: inner._core.dispatch_slab(ids, x, *NOTHING, options)
    rest = (*NOTHING, None, options, stream_of(device), 0)
    yield "C++, all results, left where they are", lambda: inner._core.dispatch(ids, x, *rest)
    own = heddle.Buffer(heddle.in_process(1)[0], experts=EXPERTS, device=device)
    yield "C++, the same in memory of its own", lambda: own._core.dispatch(ids, x, *rest)


def stream_of(device: str) -> int | None:
    return torch.cuda.current_stream().cuda_stream if device == "cuda" else None


def combines(device: str, hidden: int) -> Iterator[Line]:
    ids, weights, x = batch(device, hidden)
    outer = deep_ep.Buffer(heddle.in_process(1)[0], 0, 0, low_latency_mode=True, num_qps_per_rank=1)
    slab, _, handle, _, _ = outer.low_latency_dispatch(x, ids, MOST, EXPERTS, use_fp8=False)
    out = torch.empty_like(x)
    yield "low_latency_combine", lambda: outer.low_latency_combine(slab, ids, weights, handle)
    yield "low_latency_combine, out", lambda: outer.low_latency_combine(slab, ids, weights, handle, out=out)
    inner = heddle.Buffer(heddle.in_process(1)[0], experts=EXPERTS, device=device)
    options = dispatch_options(layout="slab", max_tokens=MOST)
    made, _ = inner.dispatch_slab(ids, x, options)
    route = heddle.Handle(made[-1], True)
    yield "heddle.Buffer.combine", lambda: inner.combine(route, slab, weights=weights).x


def parts_of_torch(device: str, hidden: int) -> Iterator[Line]:
    shapes = [((EXPERTS, MOST, hidden), torch.float8_e4m3fn), ((EXPERTS, hidden // 128, MOST), torch.float32)]
    shapes += [((EXPERTS,), torch.int32), ((EXPERTS * MOST,), torch.int32), ((EXPERTS, 1), torch.int64)]
    yield "torch.empty of five outputs", lambda: [torch.empty(s, dtype=d, device=device) for s, d in shapes]
    flat = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    yield "one tensor's view()", lambda: flat.view(1024, 1024)
    yield "one tensor's view(dtype)", lambda: flat.view(torch.int32)
    if device != "cuda":
        return
    stream, other = torch.cuda.current_stream(), torch.cuda.Stream()
    yield "torch.cuda.current_stream()", torch.cuda.current_stream
    yield "heddle's look at the same", lambda: heddle._core.torch_stream(0)
    yield "torch.cuda.current_device()", torch.cuda.current_device
    yield "torch.cuda.Event() recorded", lambda: torch.cuda.Event().record(stream)
    yield "stream.wait_stream(another)", lambda: stream.wait_stream(other)
    yield "tensor.record_stream()", lambda: flat.record_stream(stream)
    yield "a kernel of torch's (fill)", lambda: flat[:1024].zero_()

    def entered() -> None:
        with torch.cuda.stream(other):
            pass

    yield "with torch.cuda.stream(another)", entered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int, nargs="?", default=2000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'us':40}{'median':>10}{'90 % below':>12}")
    for section in (calls, combines, parts_of_torch):
        for name, call in section(options.device, HIDDEN[0]):
            measure(call, 100)
            print("{:40}{:10.1f}{:12.1f}".format(name, *measure(call, options.calls)), flush=True)


if __name__ == "__main__":
    main()
