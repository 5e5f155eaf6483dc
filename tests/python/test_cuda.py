"""Torch tensors on GPUs: the same results as on the CPU, bit for bit, on torch's streams and in torch's memory.

Ranks are threads, each with a stream of its own and a GPU of its own or a share of one. Before a thread waits for its
GPU in torch it lets its stream end: torch waits with locks held that the other ranks' launches need."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())

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


NAMES = ("x", "scales", "ids", "weights", "num_per_expert", "expert_offsets", "row_source", "row_token", "layout_range")


def round_trip(buffer: heddle.Buffer, tensors: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    x, ids, weights = tensors
    received = buffer.dispatch(buffer.plan(ids), x, weights=weights, zero_padding=True, **options)
    rows = received.x.to(torch.float32) if received.x.dtype == torch.float8_e4m3fn else received.x
    weighted = options["layout"] != "token_major"
    return received, buffer.combine(received.handle, rows, weighted=weighted)


@pytest.mark.parametrize("layout", ["token_major", "expert_major", "slab"])
@pytest.mark.parametrize("quantise", ["none", "fp8", "fp8_ue8m0"])
def test_results_are_those_of_the_cpu(layout, quantise):
    options = {"layout": layout, "quantise": quantise}
    settings = {"experts": EXPERTS, "max_tokens": TOKENS}

    def on_cpu(buffer):
        return round_trip(buffer, batch(buffer.rank, wide=buffer.rank == 1), options)

    expected = ranks.buffers(2, on_cpu, **settings)

    def body(buffer, meet):
        tensors = tuple(one.cuda() for one in batch(buffer.rank, wide=buffer.rank == 1))
        settle()
        meet()
        received, combined = round_trip(buffer, tensors, options)
        theirs, back = expected[buffer.rank]
        there = theirs.row_source >= 0
        for name in NAMES:
            seen, wanted = getattr(received, name), getattr(theirs, name)
            assert seen is None or seen.is_cuda, name
            if name == "scales" and seen is not None:  # what belongs to no row is not set
                seen, wanted = (one.reshape(-1, one.shape[-1])[there.to(one.device)] for one in (seen, wanted))
            assert same(seen, wanted), name
        for name in ("recv_offset", "recv_token", "source_tokens", "recv_ids", "status"):
            count = None if name in ("recv_offset", "source_tokens", "status") else theirs.handle.num_received
            assert same(getattr(received.handle, name)[:count], getattr(theirs.handle, name)), name
        assert same(received.handle.plan.num_tokens_per_expert, theirs.handle.plan.num_tokens_per_expert)
        assert same(combined.x, back.x)

    on_gpus(2, body, **settings)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "uint8"])
def test_tensors_keep_their_type(name):
    dtype = getattr(torch, name)

    def body(buffer, meet):
        x = torch.arange(48, device="cuda").reshape(3, 16).to(dtype)
        ids = torch.tensor([[0], [1], [-1]], dtype=torch.int32, device="cuda")
        scales = torch.rand(3, 2, device="cuda")
        received = buffer.dispatch(buffer.plan(ids), x, scales=scales)
        assert received.x.dtype == dtype and received.x is received.x and received.num_rows == 2
        assert torch.equal(bits(host(received.x)), bits(host(x[:2])))
        assert torch.equal(host(received.scales), host(scales[:2]))

    on_gpus(1, body, experts=2)


def test_strided_expanded_and_gradient_tensors_are_accepted():
    def body(buffer, meet):
        plan = buffer.plan(torch.tensor([[0], [1]], device="cuda").expand(2, 3))
        base = torch.arange(66.0, device="cuda").reshape(33, 2)
        shifted = torch.arange(40.0, device="cuda", dtype=torch.bfloat16)[1:33].view(2, 16)  # unaligned by two bytes
        for x in (base[:32].T, base[:32].T[:1].expand(2, 32), base[:32].T.clone().requires_grad_(), shifted):
            assert torch.equal(host(buffer.dispatch(plan, x).x), host(x.detach()))

    on_gpus(1, body, experts=2)


def test_a_tensor_elsewhere_is_refused_on_all_ranks():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank))
        plan = buffer.plan(ids)
        settle()
        meet()
        with pytest.raises(heddle.UsageError if buffer.rank == 1 else heddle.RefusedError, match="x") as raised:
            buffer.dispatch(plan, x.cpu() if buffer.rank == 1 else x)
        assert ("x is on cpu, legal: cuda:" in str(raised.value)) == (buffer.rank == 1)
        assert buffer.dispatch(plan, x).num_rows > 0
        with pytest.raises(heddle.UsageError, match="ids is on cpu"):
            buffer.plan(ids.cpu())
        settle()

    on_gpus(2, body, experts=EXPERTS)


def test_the_cpu_takes_no_gpu_tensor_and_no_stream():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        with pytest.raises(heddle.UsageError, match="ids is on cuda:0, legal: cpu"):
            buffer.plan(torch.zeros(3, 1, dtype=torch.int32, device="cuda"))
        plan = buffer.plan(torch.zeros(3, 1, dtype=torch.int32))
        with pytest.raises(heddle.UsageError, match="stream"):
            buffer.dispatch(plan, torch.ones(3, 16), stream=torch.cuda.Stream())


def test_a_bad_id_is_named():
    def body(buffer, meet):
        ids = torch.tensor([[0], [2]], dtype=torch.int64, device="cuda")
        plan = buffer.plan(ids)
        settle()
        with pytest.raises(heddle.UsageError, match=r"ids\[1\]\[0\]"):
            buffer.dispatch(plan, torch.ones(2, 16, device="cuda"))

    on_gpus(1, body, experts=2)


# Inputs are made on the stream just before, freed, and their memory written right after; fresh memory holds NaN;
# outputs are used on another stream. Nothing is synchronised but every few rounds, so that the queue does not fill.
def test_streams_and_memory_that_is_used_again():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank, torch.float32))
        hits = torch.stack([(ids >= first) & (ids < first + EXPERTS // 2) for first in (0, EXPERTS // 2)])
        times = hits.any(-1).sum(0).float()[:, None]
        other = torch.cuda.Stream()
        wrong = torch.zeros(1, device="cuda", dtype=torch.int64)
        plan = buffer.plan(ids)
        settle()
        meet()
        for round in range(300):
            torch.full((4 * TOKENS, HIDDEN), float("nan"), device="cuda")  # given back at once
            mine = x + round
            received = buffer.dispatch(plan, mine, fixed_size=round % 3 == 0)
            del mine
            torch.full((TOKENS, HIDDEN), float("nan"), device="cuda")
            if round % 2 == 0:
                combined = buffer.combine(received.handle, received.x).x
            else:
                combined = buffer.combine(received.handle, received.x, stream=other).x
                torch.cuda.current_stream().wait_stream(other)
                combined.record_stream(torch.cuda.current_stream())
            del received
            wrong += (combined != (x + round) * times).sum()
            if round % 16 == 15:
                settle()
        assert host(wrong).item() == 0

    on_gpus(2, body, experts=EXPERTS, max_tokens=TOKENS)


def test_split_calls_and_another_stream():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank))
        plan = buffer.plan(ids)
        settle()
        meet()
        whole = buffer.dispatch(plan, x, fixed_size=True)
        first = buffer.dispatch_send(plan, x)
        second = buffer.dispatch_send(plan, x)
        with torch.cuda.stream(torch.cuda.Stream()):
            late = second.receive().x.clone()
            settle()
        early = first.receive().x
        count = int(host(whole.handle.recv_offset)[-1])
        for seen in (early, late):
            assert torch.equal(host(seen[:count]), host(whole.x[:count]))
        split = buffer.combine_send(whole.handle, whole.x)
        wanted = buffer.combine(whole.handle, whole.x).x
        assert torch.equal(host(split.receive().x), host(wanted))

    on_gpus(2, body, experts=EXPERTS, max_tokens=TOKENS)


def test_graphs_are_captured_and_replayed_between_other_calls():
    def body(buffer, meet):
        x, ids, weights = (one.cuda() for one in batch(buffer.rank, torch.float32))
        plan = buffer.plan(ids)
        wanted = buffer.dispatch(plan, x, weights=weights, layout="expert_major", fixed_size=True)
        wanted = buffer.combine(wanted.handle, wanted.x, weighted=True).x
        settle()
        meet()
        graph = torch.cuda.CUDAGraph()
        static = x.clone()
        settle()
        for rank in range(buffer.size):  # one after the other: they share torch's generator
            meet()
            if rank != buffer.rank:
                continue
            with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
                received = buffer.dispatch(plan, static, weights=weights, layout="expert_major", fixed_size=True)
                result = buffer.combine(received.handle, received.x, weighted=True).x
        del received, plan
        meet()
        wrong = torch.zeros(1, device="cuda", dtype=torch.int64)
        for round in range(40):
            if round % 3 == 1:
                another = buffer.plan(ids)
                eager = buffer.dispatch(another, x, weights=weights, layout="expert_major", fixed_size=True)
                wrong += (buffer.combine(eager.handle, eager.x, weighted=True).x != wanted).sum()
                continue
            static.copy_(x * (round + 1))
            graph.replay()
            wrong += (result != wanted * (round + 1)).sum()
            if round % 8 == 7:
                settle()
        assert host(wrong).item() == 0
        settle()
        meet()

    on_gpus(2, body, experts=EXPERTS, max_tokens=TOKENS)


def test_a_capture_needs_fixed_sizes():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(0))
        plan = buffer.plan(ids)
        settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
            with pytest.raises(heddle.UsageError, match="fixed_size"):
                buffer.dispatch(plan, x)
        assert buffer.dispatch(plan, x).num_rows > 0

    on_gpus(1, body, experts=EXPERTS, max_tokens=TOKENS)


def gradients(buffer: heddle.Buffer, tensors: list[Any]) -> list[Any]:
    import heddle.torch as moe

    x, ids, weights = tensors
    x, weights = x.float().requires_grad_(), weights.requires_grad_()
    tokens = moe.dispatch(buffer, buffer.plan(ids), x, weights, layout="expert_major")
    out = moe.combine(buffer, tokens.handle, tokens.x * tokens.weights[:, None] * 2)
    out.sum().backward()
    return [one.cpu().numpy() for one in (out.detach(), x.grad, weights.grad)]


def gradients_on_gpu(bootstrap: heddle.Bootstrap) -> list[Any]:
    torch.cuda.set_device(bootstrap.rank % torch.cuda.device_count())
    with heddle.Buffer(bootstrap, experts=EXPERTS, device="cuda", timeout=ranks.PATIENCE) as buffer:
        results = gradients(buffer, [one.cuda() for one in batch(buffer.rank)])
        bootstrap.barrier("leaving together")
        return results


# Processes: torch goes backward in one thread a GPU, in which two ranks would wait for one another.
def test_gradients_are_those_of_the_cpu():
    expected = ranks.buffers(2, lambda buffer: gradients(buffer, list(batch(buffer.rank))), experts=EXPERTS)
    for seen, wanted in zip(ranks.on_processes(2, gradients_on_gpu), expected, strict=True):
        for one, other in zip(seen, wanted, strict=True):
            assert (one == other).all()


def test_a_handle_is_made_again_from_tensors():
    def body(buffer, meet):
        x, ids, _ = (one.cuda() for one in batch(buffer.rank))
        plan = buffer.plan(ids)
        settle()
        meet()
        first = buffer.dispatch(plan, x)
        names = ("recv_offset", "recv_token", "source_tokens", "recv_ids")
        again = buffer.handle(plan, **{name: getattr(first.handle, name).clone() for name in names})
        one, other = buffer.combine(first.handle, first.x).x, buffer.combine(again, first.x).x
        assert torch.equal(host(one), host(other))

    on_gpus(2, body, experts=EXPERTS)


def test_pinned_windows():
    def body(buffer, meet):
        assert buffer.windows == "pinned"
        received, combined = round_trip(buffer, [one.cuda() for one in batch(0)], {"layout": "token_major"})
        assert host(combined.x).shape == (TOKENS, HIDDEN)

    on_gpus(1, body, experts=EXPERTS, pinned_windows=True)


def test_pairs_in_pinned_memory():
    def body(buffer, meet):
        assert buffer.windows == "mixed"
        apart = {0: [2], 1: [], 2: [0]}[buffer.rank]
        assert [rank for rank, path in enumerate(buffer.paths) if path == "pinned"] == apart
        x, ids, weights = (one.cuda() for one in batch(buffer.rank))
        settle()
        meet()
        for layout in ("token_major", "expert_major"):
            received, combined = round_trip(buffer, (x, ids, weights), {"layout": layout})
            assert host(combined.x).shape == (TOKENS, HIDDEN)
        return host(combined.x)

    wanted = ranks.buffers(
        3, lambda buffer: round_trip(buffer, batch(buffer.rank), {"layout": "expert_major"})[1].x, experts=EXPERTS
    )
    seen = on_gpus(3, body, experts=EXPERTS, pinned_pairs=[(2, 0)])
    assert all(same(one, other) for one, other in zip(seen, wanted, strict=True))


def test_arrays_of_others_come_and_go_by_dlpack():
    cupy = pytest.importorskip("cupy")

    def body(buffer, meet):
        x = cupy.arange(48, dtype=cupy.float32).reshape(3, 16)
        cupy.cuda.get_current_stream().synchronize()
        plan = buffer.plan(cupy.array([[0], [1], [-1]], dtype=cupy.int32))
        received = buffer.dispatch(plan, x)
        assert bool((cupy.from_dlpack(received.x) == x[:2]).all())

    on_gpus(1, body, experts=2)


def process(bootstrap: heddle.Bootstrap) -> tuple[Any, str]:
    torch.cuda.set_device(bootstrap.rank % torch.cuda.device_count())
    with heddle.Buffer(bootstrap, experts=EXPERTS, device="cuda", timeout=ranks.PATIENCE) as buffer:
        received, combined = round_trip(buffer, [one.cuda() for one in batch(buffer.rank)], {"layout": "token_major"})
        bootstrap.barrier("leaving together")
        return combined.x.cpu().float().numpy(), buffer.windows


def test_ranks_that_are_processes():
    wanted = ranks.buffers(
        2, lambda buffer: round_trip(buffer, batch(buffer.rank), {"layout": "token_major"}), experts=EXPERTS
    )
    for rank, (seen, windows) in enumerate(ranks.on_processes(2, process)):
        assert windows in ("fabric", "descriptor", "pinned")
        assert torch.equal(torch.from_numpy(seen), wanted[rank][1].x.float())


def test_the_doctor_tells_the_path_of_gpus():
    from heddle.doctor.gpu_paths import gpu_paths

    (line,) = gpu_paths(2)
    assert line.topic.startswith("GPU path 0-") and line.found.split(":")[0] in ("fabric", "descriptor", "pinned")


def test_import_touches_no_gpu():
    program = """
import os, heddle
names = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
assert not [name for name in names if "nvidia" in name], names
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
