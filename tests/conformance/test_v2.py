"""ElasticBuffer: one row a token, sizes known or not, handles and what stands in them."""

import oracle
import pytest
import torch
from elastic import EXPERTS, HIDDEN, MOST, SIZES, TOPK, make
from oracle import align, same

pytestmark = pytest.mark.v2


def flat_body(rank, sizes, alignment, do_cpu_sync, every_way):
    buffer = make(rank)
    everyone = oracle.batches(sizes[: rank.size], experts=EXPERTS)
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, EXPERTS)
    local = len(wanted.per_expert)
    stats = torch.ones(local, dtype=torch.int32)
    recv_x, ids, weights, handle, event = buffer.dispatch(
        batch.x,
        batch.ids,
        batch.weights,
        cumulative_local_expert_recv_stats=stats,
        num_experts=EXPERTS,
        expert_alignment=alignment,
        do_cpu_sync=do_cpu_sync,
        async_with_compute_stream=every_way,
        do_handle_copy=not every_way,
    )
    assert (event.event is not None) == every_way
    if every_way:
        event.current_stream_wait()
    n, counts = len(wanted.token), [align(c, alignment) for c in wanted.per_expert]
    rows = n if do_cpu_sync else rank.size * MOST
    assert recv_x.shape == (rows, HIDDEN) and ids.shape == (rows, TOPK) == weights.shape
    same(recv_x[:n], wanted.x, "recv_x")
    same(ids[:n], wanted.ids, "recv_topk_idx")
    same(weights[:n], wanted.weights, "recv_topk_weights")
    assert bool((ids[n:] == -1).all()), "ids past the last row"
    assert handle.num_recv_tokens_per_expert_list == (counts if do_cpu_sync else [])
    assert (handle.do_expand, handle.num_experts, handle.expert_alignment) == (False, EXPERTS, alignment)
    assert handle.num_max_tokens_per_rank == MOST and handle.num_sms >= 4 and handle.num_sms % 2 == 0
    assert not do_cpu_sync or handle.num_recv_tokens == n
    prefix = [sum(1 for source in wanted.source if source <= r) for r in range(rank.size)]
    ints = lambda values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    same(handle.psum_num_recv_tokens_per_scaleup_rank, ints(prefix), "psum_num_recv_tokens_per_scaleup_rank")
    same(handle.num_unaligned_recv_tokens_per_expert, ints(wanted.per_expert), "num_unaligned_recv_tokens_per_expert")
    sums = ints([sum(counts[: e + 1]) for e in range(local)])
    same(handle.psum_num_recv_tokens_per_expert, sums, "psum_num_recv_tokens_per_expert")
    same(stats, ints(wanted.per_expert) + 1, "cumulative_local_expert_recv_stats")
    metadata = handle.recv_src_metadata
    assert metadata.dtype == torch.int32 and metadata.shape[1] == TOPK + 2
    tokens = [s * MOST + t for s, t in zip(wanted.source, wanted.token, strict=True)]
    assert metadata[:n, 0].tolist() == tokens, "source token of recv_src_metadata"
    first = (wanted.ids >= 0).int().argmax(dim=1).tolist() if n else []
    assert metadata[:n, 1].tolist() == [s * TOPK + k for s, k in zip(wanted.source, first, strict=True)]
    same(handle.topk_idx, batch.ids, "topk_idx")
    slots = handle.dst_buffer_slot_idx
    assert slots.dtype == torch.int32 and slots.shape == batch.ids.shape
    assert torch.equal(slots < 0, batch.ids < 0)

    y = recv_x * 2
    y[n:] = float("nan")
    reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
    ids.fill_(77)  # clients write to what they received
    recv_x.fill_(77)
    back = weights.clone()
    weights.fill_(77)
    combined, weights_back, event = buffer.combine(y, handle, topk_weights=back)
    assert event.event is None
    same(combined, batch.x * 2 * reached, "combined_x")
    same(weights_back, oracle.weights_of(batch), "combined_topk_weights")
    biases = (torch.full_like(batch.x, 3), torch.full_like(batch.x, 4))
    same(buffer.combine(y, handle, bias=biases[0])[0], batch.x * 2 * reached + 3, "one bias")
    same(buffer.combine(y, handle, bias=biases)[0], batch.x * 2 * reached + 7, "two biases")

    again, ids_again, none, handle_again, _ = buffer.dispatch(batch.x * 2, handle=handle)
    assert none is None and again.shape == y.shape
    same(again[:n], wanted.x * 2, "recv_x of a cached dispatch")
    same(ids_again[:n], wanted.ids, "recv_topk_idx of a cached dispatch")
    assert handle_again.num_recv_tokens_per_expert_list == handle.num_recv_tokens_per_expert_list
    _, _, weights_again, _, _ = buffer.dispatch(batch.x, handle=handle_again, topk_weights=batch.weights, num_sms=0)
    same(weights_again[:n], wanted.weights, "recv_topk_weights of a cached dispatch")


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize(
    "alignment, do_cpu_sync, every_way", [(1, True, False), (128, True, True), (128, False, False)]
)
@pytest.mark.parametrize("sizes", SIZES)
def test_flat_layout(world, sizes, alignment, do_cpu_sync, every_way, ranks):
    if ranks > world.size:
        pytest.skip(f"{world.size} ranks")
    world.run(flat_body, sizes, alignment, do_cpu_sync, every_way, ranks=ranks)
