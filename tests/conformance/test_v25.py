"""EPBuffer of release 2.5: deferred epilogues, an allocator, redundant experts."""

import deep_ep
import oracle
import pytest
import torch
from oracle import same
from test_v1_errors import raises

pytestmark = pytest.mark.v25

EXPERTS, MOST, HIDDEN, MIB2 = 12, 40, 256, 2 << 20


def make(rank, **settings):
    settings = {"num_max_tokens_per_rank": MOST, "hidden": HIDDEN, "num_topk": 3, **settings}
    return deep_ep.EPBuffer(rank.group, **settings)


def plain_body(rank, do_expand, do_cpu_sync):
    buffer = make(rank)
    everyone = oracle.batches((5, 7, 3, 0)[: rank.size], experts=EXPERTS)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
    recv_x, ids, weights, handle, event = buffer.dispatch(
        batch.x, batch.ids, batch.weights, num_experts=EXPERTS, do_expand=do_expand, do_cpu_sync=do_cpu_sync
    )
    assert event.event is None and handle.topk_idx is batch.ids
    n = sum(wanted.per_expert) if do_expand else len(wanted.token)
    assert recv_x.shape[0] == n if do_cpu_sync else recv_x.shape[0] > n
    if not do_expand:
        same(recv_x[:n], wanted.x, "recv_x")
        same(ids[:n], wanted.ids, "recv_topk_idx")
    combined, back, _ = buffer.combine(recv_x, handle, topk_weights=weights)
    hits = (batch.ids >= 0).sum(dim=1, keepdim=True) if do_expand else oracle.ranks_reached(batch, rank.size, EXPERTS)
    same(combined, batch.x * hits.to(batch.x.dtype), "combined_x")
    same(back, oracle.weights_of(batch), "combined_topk_weights")
    same(buffer.dispatch(batch.x, handle=handle, num_sms=0)[0][:n], recv_x[:n], "recv_x of a cached dispatch")
    assert handle.num_sms % 2 == 0 and buffer.get_theoretical_num_sms(256, 8) % 4 == 0


@pytest.mark.parametrize("do_expand", [False, True])
@pytest.mark.parametrize("do_cpu_sync", [True, False])
def test_dispatch_and_combine(world, do_expand, do_cpu_sync):
    world.run(plain_body, do_expand, do_cpu_sync)


def deferred_body(rank):
    buffer = make(rank)
    everyone = oracle.batches((5, 7, 3, 0)[: rank.size], experts=EXPERTS)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
    event = buffer.dispatch(
        batch.x,
        batch.ids,
        batch.weights,
        num_experts=EXPERTS,
        async_with_compute_stream=True,
        defer_epilogue=True,
        previous_event=buffer.capture(),
        allocate_on_comm_stream=True,
    )
    assert isinstance(event, deep_ep.EventOverlap)
    recv_x, ids, weights, handle = event.current_stream_wait()
    assert event.current_stream_wait() is None
    same(recv_x, wanted.x, "recv_x")
    same(ids, wanted.ids, "recv_topk_idx")
    bias = torch.zeros_like(batch.x)
    event = buffer.combine(recv_x, handle, weights, bias=bias, async_with_compute_stream=True, defer_epilogue=True)
    bias.fill_(5)  # produced meanwhile
    combined, back = event.wait()
    assert event.wait() is None
    reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
    same(combined, batch.x * reached + 5, "combined_x")
    same(back, oracle.weights_of(batch), "combined_topk_weights")
    raises(lambda: buffer.combine(recv_x, handle, defer_epilogue=True), "defer_epilogue.*async_with_compute_stream")
    raises(lambda: buffer.dispatch(batch.x, batch.ids, num_experts=EXPERTS, do_handle_copy=True), "do_handle_copy")


def test_deferred_epilogues(world):
    world.run(deferred_body)


def allocator_body(rank):
    plan = deep_ep.BufferAllocator()
    first = plan.allocate((2, 3), torch.float32)
    second = plan.allocate((5,), torch.bfloat16)
    assert first.device.type == "meta" and plan.num_bytes == 2 * MIB2
    assert [offset for _, offset in plan.allocations] == [0, MIB2] and not plan.materialized
    buffer = make(rank, lb_allocation_plan_or_num_bytes=plan)
    assert plan.materialized and plan.allocations[0][0] is first
    assert first.device.type != "meta" and first.shape == (2, 3) and second.dtype == torch.bfloat16
    first.fill_(3)
    second.fill_(4)
    assert float(first.sum()) == 18 and float(second.sum()) == 20
    assert second.data_ptr() - first.data_ptr() == MIB2
    raises(lambda: plan.allocate((1,), torch.uint8), "materialized")
    raises(lambda: make(rank, lb_allocation_plan_or_num_bytes=100), "lb_allocation_plan_or_num_bytes.*2097152")
    raises(lambda: deep_ep.BufferAllocator().materialize(torch.zeros(3)), "storage is")
    assert deep_ep.get_num_allocation_alignment() == MIB2 and deep_ep.get_num_tma_alignment() == 32
    assert deep_ep.get_num_rdma_alignment() > 0
    buffer.print_memory_usage()
    assert buffer.main_context is not None


def test_allocator(world):
    world.run(allocator_body, ranks=1)


def balance_body(rank, width):
    local, slots, ranks = 3, 2, rank.size
    plan = deep_ep.BufferAllocator()
    weights = [plan.allocate((slots, width), torch.bfloat16), plan.allocate((slots, 7, 16), torch.float32)]
    buffer = make(rank, lb_allocation_plan_or_num_bytes=plan)
    for one in weights:
        one.fill_(-1)
    ids = torch.arange(local) + rank.rank * local
    sources = [
        (ids[:, None] + torch.zeros(local, width)).bfloat16(),
        ids[:, None, None] + torch.zeros(local, 7, 16),
    ]
    mapping = torch.full((ranks, slots), -1, dtype=torch.int32)
    for r in range(ranks):
        if ranks > 1:
            mapping[r, 0] = (r + 1) % ranks * local + r % local
            mapping[r, 1] = -1 if r % 2 else (r + 1) % ranks * local + 2
    event = buffer.lb_prefetch_weights(weights, sources, mapping, previous_event=buffer.capture())
    event.current_stream_wait()
    for one in weights:
        for slot in range(slots):
            assert bool((one[slot].float() == float(mapping[rank.rank, slot])).all()), f"slot {slot}"
    grads = torch.ones(slots, width) * (rank.rank + 1)
    own = torch.full((local, width), 100.0)
    buffer.lb_reduce_grads(grads, own, mapping).current_stream_wait()
    want = torch.full((local,), 100.0)
    for r in range(ranks):
        for expert in mapping[r].tolist():
            if expert >= 0 and expert // local == rank.rank:
                want[expert % local] += r + 1
    same(own, want[:, None].expand(local, width), "expert_grads")
    assert buffer.lb_get_theoretical_num_sms() % 2 == 0
    raises(lambda: buffer.lb_prefetch_weights(weights, sources[:1], mapping), "redundant_expert_weights has 2")
    raises(lambda: buffer.lb_reduce_grads(grads, own, mapping.long()), "redundancy_mapping is")
    bad = mapping.clone()
    bad[0, 0] = 0
    raises(lambda: buffer.lb_reduce_grads(grads, own, bad), r"redundancy_mapping\[0\]\[0\] = 0")


@pytest.mark.parametrize("width", [16, 40_000])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_redundant_experts(world, width, ranks):
    world.run(balance_body, width, ranks=min(ranks, world.size))
