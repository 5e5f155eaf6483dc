"""One round trip of each interface on all the ranks that there are, with experts that they share unevenly."""

import deep_ep
import oracle
import pytest
import torch
from deep_ep.hybrid_ep_buffer import indices_to_map
from oracle import same
from slabs import close


def batches(rank, experts):
    sizes = tuple((7 * r + 3) % 11 for r in range(rank.size))
    return oracle.batches(sizes, experts=experts, topk=4)


def normal_body(rank, experts):
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    everyone = batches(rank, experts)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, experts)
    layout = buffer.get_dispatch_layout(batch.ids, experts)
    recv_x, ids, weights, counts, handle, _ = buffer.dispatch(
        batch.x, None, layout[0], layout[1], layout[3], layout[2], batch.ids, batch.weights
    )
    same(recv_x, wanted.x, "recv_x")
    same(ids, wanted.ids, "recv_topk_idx")
    assert counts == wanted.per_expert
    combined, back, _ = buffer.combine(recv_x, handle, weights)
    same(combined, batch.x * oracle.ranks_reached(batch, rank.size, experts).to(batch.x.dtype), "combined_x")
    same(back, oracle.weights_of(batch), "combined_topk_weights")


@pytest.mark.v1
@pytest.mark.parametrize("extra", [0, 5])
def test_normal_mode(world, extra):
    world.run(normal_body, 4 * world.size + extra, ranks=world.size)


def slab_body(rank, experts):
    buffer = deep_ep.Buffer(rank.group, 0, 1 << 25, low_latency_mode=True)
    batch = batches(rank, experts)[rank.rank]
    for hook in (False, True):
        recv_x, _, handle, _, receive = buffer.low_latency_dispatch(
            batch.x, batch.ids, 11, experts, use_fp8=False, return_recv_hook=hook
        )
        if hook:
            receive()
        combined, _, receive = buffer.low_latency_combine(
            recv_x, batch.ids, batch.weights, handle, return_recv_hook=hook
        )
        if hook:
            receive()
        close(combined, batch.x.float() * oracle.weights_of(batch).sum(dim=1, keepdim=True))


@pytest.mark.ll
@pytest.mark.parametrize("extra", [0, 5])
def test_low_latency(world, extra):
    world.run(slab_body, 4 * world.size + extra, ranks=world.size)


def elastic_body(rank, experts, kind):
    buffer = getattr(deep_ep, kind)(rank.group, num_max_tokens_per_rank=11, hidden=256, num_topk=4)
    everyone = batches(rank, experts)
    batch = everyone[rank.rank]
    for do_expand in (False, True):
        recv_x, _, weights, handle, _ = buffer.dispatch(
            batch.x, batch.ids, batch.weights, num_experts=experts, do_expand=do_expand, do_zero_padding=True
        )
        combined, back, _ = buffer.combine(recv_x, handle, topk_weights=weights)
        hits = (batch.ids >= 0).sum(dim=1, keepdim=True)
        reached = hits if do_expand else oracle.ranks_reached(batch, rank.size, experts)
        same(combined, batch.x * reached.to(batch.x.dtype), "combined_x")
        same(back, oracle.weights_of(batch), "combined_topk_weights")


@pytest.mark.parametrize(
    "kind", [pytest.param("ElasticBuffer", marks=pytest.mark.v2), pytest.param("EPBuffer", marks=pytest.mark.v25)]
)
@pytest.mark.parametrize("extra", [0, 5])
def test_elastic(world, extra, kind):
    world.run(elastic_body, 4 * world.size + extra, kind, ranks=world.size)


def hybrid_body(rank, experts):
    buffer = deep_ep.HybridEPBuffer(rank.group, 256, 64, experts // rank.size)
    batch = batches(rank, experts)[rank.rank]
    routing, probs = indices_to_map(batch.ids, oracle.weights_of(batch), len(batch.ids), experts)
    tokens, row_probs, _, _, handle = buffer.dispatch_with_permute(
        hidden=batch.x, routing_map=routing, probs=probs, pad_multiple=4
    )
    combined, back = buffer.combine_with_unpermute(hidden=tokens, probs=row_probs, handle=handle)
    same(combined, batch.x * (batch.ids >= 0).sum(dim=1, keepdim=True).to(batch.x.dtype), "combined")
    same(back, torch.where(routing, probs, 0), "probs that came back")


@pytest.mark.hybrid
def test_hybrid(world):
    world.run(hybrid_body, 4 * world.size, ranks=world.size)
