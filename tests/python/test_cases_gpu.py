"""Robustness cases that only a GPU has, or that say more there (2, 15, 16); the others run there by
HEDDLE_TEST_DEVICE=cuda."""

from __future__ import annotations

import heddle
import pytest

torch = pytest.importorskip("torch")
from gpu_trips import masked_ids, ranks_reached, spread_ids, trip  # noqa: E402
from gpus import host, on_gpus, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


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
