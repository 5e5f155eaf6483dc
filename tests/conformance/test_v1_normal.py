"""Buffer's normal mode: layout, dispatch, combine and what stands in their handles."""

import deep_ep
import oracle
import pytest
import torch
from oracle import same

pytestmark = pytest.mark.v1

EXPERTS = 12
SIZES = [(5, 7, 3, 4), (0, 9, 4, 1), (0, 0, 0, 0), (1, 64, 0, 37)]


def make(rank, **settings):
    return deep_ep.Buffer(rank.group, 1 << 25, 0, **settings)


def layout(buffer, batch, experts=EXPERTS):
    per_rank, per_rdma, per_expert, in_rank, _ = buffer.get_dispatch_layout(batch.ids, experts)
    return {
        "num_tokens_per_rank": per_rank,
        "num_tokens_per_rdma_rank": per_rdma,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }


def routed(buffer, batch, experts=EXPERTS):
    return {**layout(buffer, batch, experts), "topk_idx": batch.ids, "topk_weights": batch.weights}


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


def events_body(rank):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, 6, experts=EXPERTS)
    plain = buffer.dispatch(batch.x, **routed(buffer, batch))[0]
    for previous in (
        None,
        deep_ep.EventOverlap(None),
        deep_ep.Buffer.capture(),
        deep_ep.EventOverlap(deep_ep.EventHandle()),
    ):
        allocate = previous is not None
        *found, event = buffer.get_dispatch_layout(
            batch.ids, EXPERTS, previous_event=previous, async_finish=True, allocate_on_comm_stream=allocate
        )
        assert event.event is not None
        recv_x, ids, weights, _, handle, event = buffer.dispatch(
            batch.x,
            num_tokens_per_rank=found[0],
            num_tokens_per_rdma_rank=found[1],
            num_tokens_per_expert=found[2],
            is_token_in_rank=found[3],
            topk_idx=batch.ids,
            topk_weights=batch.weights,
            previous_event=event,
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        event.current_stream_wait()
        same(recv_x, plain, "recv_x of an asynchronous dispatch")
        combined, _, event = buffer.combine(
            recv_x, handle, previous_event=buffer.capture(), async_finish=True, allocate_on_comm_stream=True
        )
        with event:
            pass
        reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
        same(combined, batch.x * reached, "combined_x of an asynchronous combine")


def test_events_order_calls(world):
    world.run(events_body)


def positional_body(rank):
    buffer = deep_ep.Buffer(rank.group, 1 << 25, 0, False, 24, True, False, True)
    batch = oracle.make_batch(rank.rank, 6, experts=EXPERTS)
    per_rank, per_rdma, per_expert, in_rank, event = buffer.get_dispatch_layout(batch.ids, EXPERTS, None, False, False)
    config = deep_ep.Buffer.get_dispatch_config(rank.size)
    recv_x, ids, weights, counts, handle, event = buffer.dispatch(
        batch.x,
        None,
        per_rank,
        per_rdma,
        in_rank,
        per_expert,
        batch.ids,
        batch.weights,
        1,
        0,
        config,
        None,
        False,
        False,
    )
    combined, _, _ = buffer.combine(recv_x, handle, weights, None, config, None, False, False)
    same(combined, batch.x * oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype), "combined_x")
    buffer.destroy()


def test_arguments_by_position(world):
    world.run(positional_body)


def attributes_body(rank):
    buffer = make(rank)
    assert (buffer.rank, buffer.group_size, buffer.group) == (rank.rank, rank.size, rank.group)
    assert (buffer.num_nvl_bytes, buffer.num_rdma_bytes, buffer.low_latency_mode) == (1 << 25, 0, False)
    assert buffer.runtime is not None
    buffer.get_comm_stream()
    local = buffer.get_local_buffer_tensor(torch.uint8)
    assert local.numel() == 1 << 25
    assert buffer.get_local_buffer_tensor(torch.float32, torch.Size([4, 8]), 16).shape == (4, 8)


def test_attributes(world):
    world.run(attributes_body)
