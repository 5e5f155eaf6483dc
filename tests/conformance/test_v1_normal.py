"""Buffer's normal mode: layout, dispatch, combine."""

import oracle
import pytest
import torch
from normal import EXPERTS, SIZES, layout, make, routed
from oracle import same

pytestmark = pytest.mark.v1


def layout_body(rank, sizes):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, sizes[rank.rank], experts=EXPERTS)
    for dtype in (torch.int64, torch.int32, torch.int64):
        per_rank, per_rdma, per_expert, in_rank, event = buffer.get_dispatch_layout(batch.ids.to(dtype), EXPERTS)
        wanted = oracle.in_rank(batch.ids, rank.size, EXPERTS)
        same(in_rank, wanted, "is_token_in_rank")
        same(per_rank, wanted.sum(dim=0, dtype=torch.int32), "num_tokens_per_rank")
        counts = [int((batch.ids == e).sum()) for e in range(EXPERTS)]
        same(per_expert, torch.tensor(counts, dtype=torch.int32), "num_tokens_per_expert")
        assert per_rdma is None and event.event is None
        buffer.dispatch(batch.x, **routed(buffer, batch))  # layouts may be made otherwise after the first


@pytest.mark.parametrize("sizes", SIZES)
def test_layout_counts_tokens_and_pairs(world, sizes):
    world.run(layout_body, sizes)


def round_trip_body(rank, sizes, alignment):
    buffer = make(rank)
    everyone = oracle.batches(sizes[: rank.size], experts=EXPERTS)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
    for _ in range(2):
        recv_x, ids, weights, counts, handle, event = buffer.dispatch(
            batch.x, **routed(buffer, batch), expert_alignment=alignment
        )
        same(recv_x, wanted.x, "recv_x")
        same(ids, wanted.ids, "recv_topk_idx")
        same(weights, wanted.weights, "recv_topk_weights")
        assert recv_x.is_contiguous() and ids.is_contiguous() and weights.is_contiguous()
        assert type(counts) is list and counts == [oracle.align(n, alignment) for n in wanted.per_expert], counts
        assert event.event is None
        prefix = [sum(1 for source in wanted.source if source <= r) for r in range(rank.size)]
        assert handle[0][:, rank.rank].tolist() == prefix, "rank_prefix_matrix"
        again, *nothing, event = buffer.dispatch(batch.x * 2, handle=handle)
        same(again, wanted.x * 2, "recv_x of a cached dispatch")
        assert nothing == [None] * 4 and event.event is None
        combined, back, event = buffer.combine(recv_x * 2, handle, topk_weights=weights)
        same(combined, batch.x * 2 * oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype), "combined_x")
        same(back, oracle.weights_of(batch), "combined_topk_weights")
        plain, none, _ = buffer.combine(recv_x * 2, handle)
        assert none is None
        same(plain, combined, "combined_x without weights")
        copies = [tensor.clone() for tensor in handle]
        same(buffer.combine(recv_x * 2, copies)[0], combined, "combined_x by copies of the handle's tensors")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize("sizes", SIZES)
def test_round_trip_is_exact(world, sizes, alignment, ranks):
    if ranks > world.size:
        pytest.skip(f"{world.size} ranks")
    world.run(round_trip_body, sizes, alignment, ranks=ranks)


def no_ids_body(rank, sizes):
    buffer = make(rank)
    everyone = oracle.batches(sizes[: rank.size], experts=EXPERTS)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
    recv_x, ids, weights, counts, handle, _ = buffer.dispatch(batch.x, **layout(buffer, batch))
    same(recv_x, wanted.x, "recv_x")
    assert ids is None and weights is None
    assert counts == wanted.per_expert, counts
    combined, none, _ = buffer.combine(recv_x, handle)
    same(combined, batch.x * oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype), "combined_x")
    assert none is None
    same(buffer.dispatch(batch.x, handle=handle)[0], wanted.x, "recv_x of a cached dispatch")


@pytest.mark.parametrize("sizes", SIZES)
def test_dispatch_without_ids(world, sizes):
    world.run(no_ids_body, sizes)


def bias_body(rank):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, 6, experts=EXPERTS)
    recv_x, _, _, _, handle, _ = buffer.dispatch(batch.x, **routed(buffer, batch))
    plain = buffer.combine(recv_x, handle)[0]
    one, two = torch.full_like(batch.x, 3), torch.full_like(batch.x, 5)
    same(buffer.combine(recv_x, handle, bias=one)[0], plain + one, "one bias")
    same(buffer.combine(recv_x, handle, bias=(one, two))[0], plain + one + two, "two biases")


def test_biases_are_added(world):
    world.run(bias_body)


def absent_body(rank):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, 8, experts=EXPERTS)
    batch.ids[:] = -1
    recv_x, ids, _, counts, handle, _ = buffer.dispatch(batch.x, **routed(buffer, batch))
    assert recv_x.shape == (0, 256) and ids.shape == (0, 3) and sum(counts) == 0
    same(buffer.combine(recv_x, handle)[0], torch.zeros_like(batch.x), "combined_x of tokens without experts")
    bias = torch.full_like(batch.x, 7)
    same(buffer.combine(recv_x, handle, bias=bias)[0], bias, "combined_x with a bias")


def test_tokens_without_experts_combine_to_zero_or_the_bias(world):
    world.run(absent_body)


def skew_body(rank):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, 33, experts=EXPERTS)
    batch.ids[:] = torch.tensor([EXPERTS - 1, -1, EXPERTS - 2])
    batch.weights[:] = 1
    recv_x, ids, _, counts, handle, _ = buffer.dispatch(batch.x, **routed(buffer, batch))
    last = rank.rank == rank.size - 1
    assert recv_x.shape[0] == (33 * rank.size if last else 0)
    assert sum(counts) == (66 * rank.size if last else 0) == int((ids != -1).sum())
    same(buffer.combine(recv_x, handle)[0], batch.x, "combined_x")


def test_all_tokens_to_one_rank(world):
    world.run(skew_body)


def twice_body(rank):
    """A token that names an expert twice is sent once, and both columns are kept."""
    buffer = make(rank)
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    ids = torch.tensor([[3, 3, 7, -1], [11, 11, 11, 11]])
    weights = torch.tensor([[0.25, 0.5, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    batch = oracle.Batch(x, ids, weights)
    recv_x, recv_ids, recv_weights, counts, handle, _ = buffer.dispatch(x, **routed(buffer, batch))
    wanted = oracle.arrivals([batch] * rank.size, rank.rank, EXPERTS)
    same(recv_ids, wanted.ids, "recv_topk_idx")
    same(recv_weights, wanted.weights, "recv_topk_weights")
    assert counts == wanted.per_expert and recv_x.shape[0] == len(wanted.token)
    same(buffer.combine(recv_x, handle, topk_weights=recv_weights)[1], weights, "combined_topk_weights")


def test_an_expert_twice_in_a_token(world):
    world.run(twice_body)


def worst_body(rank):
    buffer = make(rank)
    sizes = (5, 30, 0, 2)[: rank.size]
    worst = 30 * rank.size
    for seed, shrink in ((0, 1), (1, 6)):
        everyone = oracle.batches(tuple(n // shrink for n in sizes), experts=EXPERTS, seed=seed)
        batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
        recv_x, ids, weights, counts, handle, _ = buffer.dispatch(
            batch.x, **routed(buffer, batch), num_worst_tokens=worst
        )
        n = len(wanted.token)
        assert recv_x.shape == (worst, 256) and ids.shape == (worst, 3) == weights.shape and counts == []
        same(recv_x[:n], wanted.x, "recv_x")
        same(ids[:n], wanted.ids, "recv_topk_idx")
        assert bool((ids[n:] == -1).all()), "ids past the last row"
        y = recv_x.clone()
        y[n:] = float("nan")
        reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
        same(buffer.combine(y, handle, topk_weights=weights)[0], batch.x * reached, "combined_x")
        for one in (handle, [tensor.clone() for tensor in handle]):
            again = buffer.dispatch(batch.x, handle=one)[0]
            assert len(again) == worst
            same(again[:n], wanted.x, "recv_x of a cached dispatch")
            same(buffer.combine(y, one)[0], batch.x * reached, "combined_x by copies of the handle's tensors")


def test_num_worst_tokens_gives_that_many_rows(world):
    world.run(worst_body)
