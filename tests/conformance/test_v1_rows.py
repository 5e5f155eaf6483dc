"""Buffer's normal mode: rows of other types, in parts, and of changing shapes."""

import oracle
import pytest
import torch
from normal import EXPERTS, make, routed
from oracle import same

pytestmark = pytest.mark.v1


def scales_body(rank, strided):
    buffer = make(rank)
    everyone = oracle.batches((5, 7, 3, 4)[: rank.size], experts=EXPERTS)
    scales = [torch.arange(2 * len(b.x), dtype=torch.float32).reshape(-1, 2) + 100 * r for r, b in enumerate(everyone)]
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
    want_scales = torch.stack([scales[s][t] for s, t in zip(wanted.source, wanted.token, strict=True)])
    mine = scales[rank.rank]
    if strided:
        mine = mine.t().contiguous().t()
    for dtype, scale_type in ((torch.float8_e4m3fn, torch.float32), (torch.uint8, torch.int32)):
        x = batch.x.abs().to(dtype)
        (recv_x, recv_scales), _, _, _, handle, _ = buffer.dispatch((x, mine.to(scale_type)), **routed(buffer, batch))
        same(recv_x.view(torch.uint8), wanted.x.abs().to(dtype).view(torch.uint8), "recv_x")
        same(recv_scales, want_scales.to(scale_type), "scales")
        assert recv_scales.is_contiguous()
        (again, scales_again), *_ = buffer.dispatch((x, mine.to(scale_type)), handle=handle)
        same(again.view(torch.uint8), recv_x.view(torch.uint8), "recv_x of a cached dispatch")
        same(scales_again, recv_scales, "scales of a cached dispatch")


@pytest.mark.parametrize("strided", [False, True])
def test_ready_made_fp8_travels_untouched(world, strided):
    world.run(scales_body, strided)


def three_parts_body(rank):
    """Packed FP4 of branch hybrid-ep: elements, scales and factors, forwarded bit for bit."""
    buffer = make(rank)
    everyone = oracle.batches((5, 0, 3, 4)[: rank.size], experts=EXPERTS)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)

    def parts(r):
        n = len(everyone[r].x)
        numbers = torch.arange(n * 40, dtype=torch.int32).view(n, 40) + 1000 * r
        return numbers[:, :32].contiguous(), numbers[:, 32:36], numbers[:, 36:].float()

    received = buffer.dispatch(parts(rank.rank), **routed(buffer, batch))[0]
    assert isinstance(received, tuple) and len(received) == 3
    for i, name in enumerate(("elements", "scales", "factors")):
        rows = [parts(s)[i][t] for s, t in zip(wanted.source, wanted.token, strict=True)]
        same(received[i], torch.stack(rows) if rows else parts(0)[i][:0], name)


def test_three_parts(world):
    world.run(three_parts_body)


def shapes_body(rank):
    """Hidden sizes, top-k and numbers of experts change from call to call; several handles are alive."""
    buffer = make(rank)
    alive = []
    for seed, (hidden, topk, experts) in enumerate([(8, 1, 4), (72, 8, 16), (1024, 2, 5), (256, 6, 64), (8, 1, 4)]):
        everyone = oracle.batches((6, 2, 9, 0)[: rank.size], hidden=hidden, topk=topk, experts=experts, seed=seed)
        batch = everyone[rank.rank]
        recv_x, *_, handle, _ = buffer.dispatch(batch.x, **routed(buffer, batch, experts))
        same(recv_x, oracle.arrivals(everyone, rank.rank, experts).x, f"recv_x of hidden {hidden}")
        alive.append((batch, experts, recv_x, handle))
    for batch, experts, recv_x, handle in reversed(alive):
        reached = oracle.ranks_reached(batch, rank.size, experts).to(batch.x.dtype)
        same(buffer.combine(recv_x, handle)[0], batch.x * reached, f"combined_x of {experts} experts")


def test_shapes_change_and_handles_stay(world):
    world.run(shapes_body)
