"""Robustness cases that only a GPU has, or that say more there; the others run there by HEDDLE_TEST_DEVICE=cuda."""

from __future__ import annotations

import threading
from typing import Any

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
from test_cuda import host, on_gpus, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


def ranks_reached(ids: Any, size: int, experts: int) -> Any:
    """[T, 1] how many ranks each token goes to."""
    bounds = [rank * experts // size for rank in range(size + 1)]
    hits = [((ids >= a) & (ids < b)).any(-1) for a, b in zip(bounds, bounds[1:], strict=False)]
    return torch.stack(hits).sum(0)[:, None]


def trip(buffer: heddle.Buffer, ids: Any, x: Any, **options: Any) -> Any:
    """There and back without experts, and without the host."""
    received = buffer.dispatch(buffer.plan(ids), x, fixed_size=True, **options)
    return buffer.combine(received.handle, received.x).x


def spread_ids(tokens: int, topk: int, experts: int, seed: int) -> Any:
    dice = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(experts, generator=dice)[:topk] for _ in range(tokens)]).int().cuda()


@pytest.mark.parametrize("where", ["one rank", "all ranks", "one rank's tokens"])
@pytest.mark.parametrize(("tokens", "hidden", "topk"), [(64, 2048, 2), (256, 7168, 8), (1024, 2048, 8)])
def test_case_02_exact_round_trips_at_full_capacity(tokens, hidden, topk, where):
    """No host between the rounds, a GEMM beside; every element of every round, counted on the GPU."""
    rounds = 100

    def body(buffer, meet):
        ids = spread_ids(tokens, topk, 64, buffer.rank)
        if where == "one rank":
            ids = ids % 32 + 32 if topk == 2 else (torch.arange(topk, device="cuda").int() + 32).expand(tokens, topk)
        if where == "one rank's tokens" and buffer.rank == 0:
            ids = torch.full_like(ids, -1)
        ids = ids.contiguous()
        times = ranks_reached(ids, buffer.size, 64)
        pattern = torch.arange(tokens * hidden, device="cuda").reshape(tokens, hidden)
        other, bad = torch.cuda.Stream(), torch.zeros((), dtype=torch.int64, device="cuda")
        matrix = torch.ones(2048, 2048, device="cuda", dtype=torch.bfloat16)
        settle()
        meet()
        for round in range(rounds):
            if round % 8 == 0:
                with torch.cuda.stream(other):
                    matrix @ matrix
            x = ((pattern + round) % 2).bfloat16()
            bad += (trip(buffer, ids, x) != x * times).any(-1).sum()
            if round % 16 == 15:
                settle()
        assert host(bad).item() == 0

    on_gpus(2, body, experts=64, max_tokens=tokens)


def masked_ids(tokens: int, kind: str, seed: int) -> Any:
    ids = spread_ids(tokens, 2, 8, seed)
    if kind == "none":
        return torch.full_like(ids, -1)
    if kind == "skew":
        return torch.tensor([7, -1], device="cuda").int().expand(tokens, 2).contiguous()
    return ids


def test_case_07_graphs_of_several_sizes_in_any_order():
    """Captured once, replayed 100 times with ids and rows written in place; eager calls between."""
    sizes = (1, 2, 4, 8, 16)

    def body(buffer, meet):
        graphs = {}
        settle()
        trip(buffer, masked_ids(16, "", 0), torch.ones(16, 64, device="cuda"))  # nothing is loaded in a capture
        settle()
        for rank in range(buffer.size):  # one after the other: they share torch's generator
            meet()
            if rank != buffer.rank:
                continue
            for tokens in sizes:
                ids, x = masked_ids(tokens, "", 1), torch.zeros(tokens, 64, device="cuda")
                graph = torch.cuda.CUDAGraph()
                settle()
                with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
                    result = trip(buffer, ids, x)
                graphs[tokens] = graph, ids, x, result
        meet()
        bad = torch.zeros((), dtype=torch.int64, device="cuda")
        for round in range(100):
            tokens = sizes[(3 * round + round // 7) % len(sizes)]
            graph, ids, x, result = graphs[tokens]
            ids.copy_(masked_ids(tokens, ("", "none", "", "skew")[round % 4], 10 * round + buffer.rank))
            x.fill_(round + 1)
            graph.replay()
            wanted = x * ranks_reached(ids, buffer.size, 8)
            bad += (result != wanted).sum()
            if round % 5 == 0:
                bad += (trip(buffer, ids, x) != wanted).sum()
            if round % 8 == 7:
                settle()
        assert host(bad).item() == 0
        settle()
        meet()

    on_gpus(2, body, experts=8, max_tokens=16)


def test_case_07_what_a_capture_cannot_hold_is_said():
    def body(buffer, meet):
        ids, x = masked_ids(4, "", 0), torch.ones(4, 64, device="cuda")
        plan = buffer.plan(ids)
        settle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local", stream=torch.cuda.current_stream()):
            with pytest.raises(heddle.UsageError, match="fixed_size"):
                buffer.dispatch(plan, x)
        assert torch.equal(host(trip(buffer, ids, x)), host(x))

    on_gpus(1, body, experts=8, max_tokens=16)


def test_case_15_streams_and_memory_reuse():
    """Inputs of a side stream, results on a third, random sleeps; inputs rewritten right after the call."""

    def body(buffer, meet):
        ids = masked_ids(16, "", buffer.rank)
        times = ranks_reached(ids, buffer.size, 8)
        side, third = torch.cuda.Stream(), torch.cuda.Stream()
        own, bad = torch.cuda.current_stream(), torch.zeros((), dtype=torch.int64, device="cuda")
        dice = torch.Generator().manual_seed(buffer.rank)
        plan = buffer.plan(ids)
        settle()
        meet()
        for round in range(200):
            with torch.cuda.stream(side):
                torch.cuda._sleep(int(torch.randint(0, 20000, (), generator=dice)))
                x = torch.full((16, 256), float(round), device="cuda")
            own.wait_stream(side)
            x.record_stream(own)
            received = buffer.dispatch(plan, x, fixed_size=True)
            x.fill_(float("nan"))
            torch.empty(16, 256, device="cuda").fill_(float("nan"))
            y = buffer.combine(received.handle, received.x).x
            third.wait_stream(own)
            with torch.cuda.stream(third):
                torch.cuda._sleep(int(torch.randint(0, 20000, (), generator=dice)))
                bad += (y != float(round) * times).sum()
                y.record_stream(third)
            side.wait_stream(own)
            if round % 8 == 7:
                settle()
        own.wait_stream(third)
        assert host(bad).item() == 0

    on_gpus(2, body, experts=8, max_tokens=16)


@pytest.mark.parametrize("batches", [2, 3])
def test_case_16_operations_in_flight(batches):
    """Dispatches begin before the ones before are received: the third one's send receives the first."""

    def body(buffer, meet):
        tensors = [
            (masked_ids(16, "", 10 * b + buffer.rank), torch.full((16, 64), float(b + 1), device="cuda"))
            for b in range(batches)
        ]
        plans = [buffer.plan(ids) for ids, _ in tensors]
        settle()
        meet()
        for order in (range(batches), reversed(range(batches))):
            sent = [buffer.dispatch_send(plan, x) for plan, (_, x) in zip(plans, tensors, strict=True)]
            received = {b: sent[b].receive() for b in order}
            back = {b: buffer.combine_send(received[b].handle, received[b].x) for b in range(batches)}
            for b, (ids, x) in enumerate(tensors):
                assert torch.equal(host(back[b].receive().x), host(x * ranks_reached(ids, buffer.size, 8))), b

    on_gpus(2, body, experts=8, max_tokens=16)


def test_case_17_other_work_on_the_gpu():
    """(a) A queue of large products holds the multiprocessors: late, and right."""

    def body(buffer, meet):
        ids, x = masked_ids(16, "", buffer.rank), torch.ones(16, 64, device="cuda")
        other, matrix = torch.cuda.Stream(), torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
        settle()
        meet()
        with torch.cuda.stream(other):
            for _ in range(40):
                matrix @ matrix
        for _ in range(5):
            y = trip(buffer, ids, x)
        assert torch.equal(host(y), host(x * ranks_reached(ids, buffer.size, 8)))

    on_gpus(2, body, experts=8, max_tokens=16)


@pytest.mark.parametrize("num_sms", [None, 1, 7, 10**6])
def test_case_17_any_number_of_multiprocessors(num_sms):
    """(c) Odd, one, more than there are."""

    def body(buffer, meet):
        ids, x = masked_ids(16, "", buffer.rank), torch.ones(16, 64, device="cuda")
        settle()
        meet()
        received = buffer.dispatch(buffer.plan(ids, num_sms=num_sms), x, num_sms=num_sms)
        y = buffer.combine(received.handle, received.x, num_sms=num_sms).x
        assert torch.equal(host(y), host(x * ranks_reached(ids, buffer.size, 8)))
        with pytest.raises((heddle.UsageError, heddle.RefusedError), match="num_sms"):
            buffer.dispatch(received.handle.plan, x, num_sms=-1)

    on_gpus(2, body, experts=8, num_sms=num_sms)


def test_case_20_more_than_2_to_the_31_elements():
    """300,000 rows of 7168: offsets in 64 bits."""
    tokens, hidden = 150_000, 7168

    def body(buffer, meet):
        ids = torch.tensor([[0, 1]], device="cuda").int().expand(tokens, 2).contiguous()
        column = (torch.arange(tokens, device="cuda") % 251 + buffer.rank).bfloat16()[:, None]
        x = column.expand(tokens, hidden).contiguous()
        settle()
        meet()
        received = buffer.dispatch(buffer.plan(ids), x)
        assert received.x.shape == (2 * tokens, hidden) and received.x.numel() > 2**31
        base = torch.arange(tokens, device="cuda") % 251
        wrong = sum(
            (received.x[s * tokens :][:tokens] != (base + s).bfloat16()[:, None]).any(-1).sum() for s in range(2)
        )
        y = buffer.combine(received.handle, received.x).x
        wrong += (y != 2 * column.float()).any(-1).sum()
        assert host(wrong).item() == 0

    on_gpus(2, body, experts=2)


@pytest.mark.parametrize("gibibytes", [3, 5, 33])
def test_case_20_large_windows(gibibytes):
    def body(buffer, meet):
        assert gibibytes << 30 <= buffer.predicted_bytes <= 1.4 * (gibibytes << 30)
        ids = torch.zeros(4096, 1, device="cuda").int()
        x = torch.arange(4096, device="cuda").float()[:, None].expand(4096, 1024).contiguous()
        for _ in range(3):
            assert torch.equal(host(trip(buffer, ids, x)), host(x))

    on_gpus(1, body, experts=1, max_tokens=4096, window_bytes=gibibytes << 30)


def test_case_20_out_of_memory_is_said():
    with pytest.raises(ranks.RankError, match="UsageError.*window of .* bytes.*GPU 0 has .* free"):
        on_gpus(1, lambda buffer, meet: None, experts=1, window_bytes=1 << 42)
    on_gpus(1, lambda buffer, meet: None, experts=1)


@pytest.mark.parametrize(
    "settings", [{"pinned_windows": True}, {"pinned_pairs": [(0, 1)]}, {"pinned_pairs": [(0, 2), (2, 1)]}]
)
def test_case_22_gpus_that_do_not_reach_each_other(settings):
    """A slower path that is right."""

    def body(buffer, meet):
        ids, x = masked_ids(16, "", buffer.rank), torch.ones(16, 64, device="cuda")
        settle()
        meet()
        for round in range(20):
            y = trip(buffer, ids, x * round)
            assert torch.equal(host(y), host(x * round * ranks_reached(ids, buffer.size, 8)))
        return buffer.windows, buffer.paths

    for rank, (windows, paths) in enumerate(on_gpus(3, body, experts=8, max_tokens=16, **settings)):
        apart = {frozenset(pair) for pair in settings.get("pinned_pairs", ())}
        assert windows == ("mixed" if apart else "pinned")
        for peer, path in enumerate(paths):
            assert (path == "pinned") == (not apart or frozenset((rank, peer)) in apart)


@pytest.mark.parametrize("pairs", [[(0, 0)], [(0, 3)], [(-1, 1)]])
def test_case_22_wrong_pairs_are_said(pairs):
    for error in ranks.on_threads(2, lambda one: heddle.Buffer(one, experts=2, device="cuda:0", pinned_pairs=pairs)):
        assert isinstance(error, heddle.UsageError) and "pinned_pairs" in str(error)


def moe(buffer: heddle.Buffer, x: Any, ids: Any, weights: Any, scale: Any) -> Any:
    import heddle.torch as front

    tokens = front.dispatch(buffer, buffer.plan(ids), x, weights, layout="expert_major")
    return front.combine(buffer, tokens.handle, tokens.x * tokens.weights[:, None] * scale)


def train(bootstrap: heddle.Bootstrap) -> Any:
    """Two layers on one buffer, an evaluation between steps, a rank without tokens, one layer recomputed."""
    torch.cuda.set_device(bootstrap.rank % torch.cuda.device_count())
    tokens = (0, 9)[bootstrap.rank]
    dice = torch.Generator().manual_seed(5 + bootstrap.rank)
    x = torch.randint(-3, 4, (tokens, 32), generator=dice).float().cuda().requires_grad_()
    ids = torch.randint(-1, 3, (tokens, 2), generator=dice).cuda()  # expert 3 gets nothing
    weights = torch.randint(1, 4, (tokens, 2), generator=dice).float().cuda().requires_grad_()
    scale = torch.tensor(2.0, device="cuda", requires_grad=True)
    with heddle.Buffer(bootstrap, experts=4, device="cuda", timeout=ranks.PATIENCE) as buffer:
        first = moe(buffer, x, ids, weights, scale)
        with torch.no_grad():
            moe(buffer, x, ids, weights, scale)
        second = torch.utils.checkpoint.checkpoint(
            lambda y: moe(buffer, y, ids, weights, scale), first, use_reentrant=False
        )
        second.sum().backward()
        bootstrap.barrier("leaving together")
        return [one.detach().cpu().numpy() for one in (second, x.grad, weights.grad, x, ids, weights)]


def test_case_24_gradients_are_those_of_a_dense_model():
    import torch.utils.checkpoint  # noqa: F401

    for results in ranks.on_processes(2, train):
        *seen, x, ids, weights = map(torch.from_numpy, results)
        x.requires_grad_()
        weights.requires_grad_()
        total = (weights * (ids >= 0)).sum(1, keepdim=True)
        wanted = x * (2 * total) * (2 * total)  # each layer: the token's row times its weights times 2
        wanted.sum().backward()
        for one, other in zip(seen, (wanted.detach(), x.grad, weights.grad), strict=True):
            assert torch.equal(one, other)


def test_a_wait_for_counts_ends_at_its_deadline_and_lets_others_run():
    """Exact sizes make the host wait for a peer's header: without the GIL, and not for ever."""
    ended, seen = threading.Event(), []

    def body(buffer, meet):
        if buffer.rank == 0:
            plan = buffer.plan(masked_ids(4, "", 0))
            settle()
            threading.Timer(0.5, lambda: seen.append(ended.is_set())).start()
            try:
                with pytest.raises(heddle.TimeoutError_, match="dispatch.*rank 1"):
                    buffer.dispatch(plan, torch.ones(4, 64, device="cuda"))
                ended.set()
                assert seen == [False]  # another thread ran in the middle of the wait
            finally:
                meet()
        else:
            meet()
        buffer.reset()

    ranks.all_well(ranks.on_threads(2, lambda one: with_a_deadline(one, body)))


def with_a_deadline(bootstrap: heddle.Bootstrap, body: Any) -> None:
    torch.cuda.set_device(0)
    with torch.cuda.stream(torch.cuda.Stream()):
        with heddle.Buffer(bootstrap, experts=8, device="cuda:0", timeout=2.0) as buffer:
            body(buffer, lambda: bootstrap.barrier("a meeting"))
            bootstrap.barrier("leaving together")
