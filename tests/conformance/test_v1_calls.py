"""Buffer's normal mode: events, arguments by position, attributes."""

import deep_ep
import oracle
import pytest
import torch
from normal import EXPERTS, make, routed
from oracle import same

pytestmark = pytest.mark.v1


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
