"""Random walks: sizes, shapes and modes change from call to call on one buffer, which is never cleaned."""

import random

import deep_ep
import oracle
import pytest
import torch
from oracle import same
from slabs import close

MOST = 24


def choices(seed, ranks):
    """The same on all ranks but for the tokens of each."""
    rng = random.Random(seed)
    return {
        "sizes": tuple(rng.choice((0, 1, 5, MOST)) for _ in range(ranks)),
        "hidden": rng.choice((8, 64, 72, 128, 1000, 2880)),
        "topk": rng.choice((1, 2, 3, 8, 9)),
        "experts": rng.choice((ranks, 2 * ranks, 13, 64, 96)),
        "mode": rng.choice(("normal", "cached", "slab", "hook")),
    }


def batches(choice, seed):
    topk = min(choice["topk"], choice["experts"])
    return oracle.batches(choice["sizes"], hidden=choice["hidden"], topk=topk, experts=choice["experts"], seed=seed)


def normal(buffer, rank, everyone, experts, cached):
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, experts)
    layout = buffer.get_dispatch_layout(batch.ids, experts)
    recv_x, ids, weights, _, handle, _ = buffer.dispatch(
        batch.x, None, layout[0], layout[1], layout[3], layout[2], batch.ids, batch.weights
    )
    same(recv_x, wanted.x, "recv_x")
    same(ids, wanted.ids, "recv_topk_idx")
    if cached:
        same(buffer.dispatch(batch.x * 2, handle=handle)[0], wanted.x * 2, "recv_x of a cached dispatch")
    combined, back, _ = buffer.combine(recv_x, handle, weights)
    same(combined, batch.x * oracle.ranks_reached(batch, rank.size, experts).to(batch.x.dtype), "combined_x")
    same(back, oracle.weights_of(batch), "combined_topk_weights")


def slab(buffer, rank, everyone, experts, hook):
    batch = everyone[rank.rank]
    recv_x, count, handle, _, receive = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, experts, use_fp8=False, return_recv_hook=hook
    )
    if hook:
        receive()
    assert count.tolist() == [len(oracle.expert_rows(everyone, e)) for e in oracle.owned(rank.rank, rank.size, experts)]
    combined, _, receive = buffer.low_latency_combine(recv_x, batch.ids, batch.weights, handle, return_recv_hook=hook)
    if hook:
        receive()
    close(combined, batch.x.float() * oracle.weights_of(batch).sum(dim=1, keepdim=True), 0.02)


def walk_body(rank, steps):
    buffer = deep_ep.Buffer(rank.group, 1 << 25, 1 << 25, low_latency_mode=True)
    for seed in range(steps):
        choice = choices(seed, rank.size)
        everyone, mode = batches(choice, seed), choice["mode"]
        try:
            if mode in ("normal", "cached"):
                normal(buffer, rank, everyone, choice["experts"], mode == "cached")
            else:
                slab(buffer, rank, everyone, choice["experts"], mode == "hook")
        except Exception as error:
            raise AssertionError(f"step {seed}, {choice}: {error}") from error


@pytest.mark.v1
@pytest.mark.ll
@pytest.mark.parametrize("ranks", [2, 3])
def test_both_modes_of_buffer(world, ranks):
    world.run(walk_body, 30, ranks=min(ranks, world.size))


def elastic_walk_body(rank, steps):
    buffer = deep_ep.ElasticBuffer(rank.group, 1 << 25)
    for seed in range(steps):
        choice = choices(seed, rank.size)
        everyone, experts = batches(choice, seed), choice["experts"]
        batch, expand, waits = everyone[rank.rank], seed % 2 == 0, seed % 3 > 0
        recv_x, _, weights, handle, _ = buffer.dispatch(
            batch.x,
            batch.ids,
            batch.weights,
            num_experts=experts,
            num_max_tokens_per_rank=MOST,
            expert_alignment=(1, 16)[seed % 2],
            do_expand=expand,
            do_cpu_sync=waits,
        )
        combined, back, _ = buffer.combine(recv_x, handle, topk_weights=weights)
        hits = (batch.ids >= 0).sum(dim=1, keepdim=True)
        reached = hits if expand else oracle.ranks_reached(batch, rank.size, experts)
        same(combined, batch.x * reached.to(batch.x.dtype), f"combined_x of step {seed}, {choice}")
        same(back, oracle.weights_of(batch), f"combined_topk_weights of step {seed}")


@pytest.mark.v2
@pytest.mark.parametrize("ranks", [2, 3])
def test_elastic(world, ranks):
    world.run(elastic_walk_body, 30, ranks=min(ranks, world.size))


def full_body(rank, rounds):
    """Full capacity many times, without anything between dispatch and combine: every bit, every time."""
    buffer = deep_ep.Buffer(rank.group, 1 << 25, 1 << 25, low_latency_mode=True)
    everyone = oracle.batches((64,) * rank.size, hidden=256, topk=8, experts=16)
    batch = everyone[rank.rank]
    weights = torch.ones_like(batch.weights)
    wanted = batch.x * (batch.ids >= 0).sum(dim=1, keepdim=True).to(batch.x.dtype)
    wrong = 0
    for _ in range(rounds):
        recv_x, _, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, 64, 16, use_fp8=False)
        wrong += not torch.equal(buffer.low_latency_combine(recv_x, batch.ids, weights, handle)[0], wanted)
    assert wrong == 0, f"{wrong} of {rounds} rounds were wrong"


@pytest.mark.ll
def test_full_capacity_many_times(world):
    world.run(full_body, 200, ranks=min(2, world.size))
