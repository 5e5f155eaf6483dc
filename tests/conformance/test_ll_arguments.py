"""Arguments of low-latency calls: outputs, statistics, sizes, and wrong ones."""

import oracle
import pytest
import torch
from oracle import same
from slabs import EXPERTS, HIDDEN, MOST, back, close, everyone, garbage, make
from test_v1_errors import LATE, raises, refused_elsewhere

pytestmark = pytest.mark.ll


def out_body(rank):
    buffer = make(rank)
    batch = everyone(rank)[rank.rank]
    recv_x, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    out = torch.full_like(batch.x, float("nan"))
    combined, event, _ = buffer.low_latency_combine(
        recv_x, batch.ids, batch.weights, handle, out=out, async_finish=True
    )
    event.current_stream_wait()
    assert combined.data_ptr() == out.data_ptr()
    close(out, back(batch))
    target = buffer.get_next_low_latency_combine_buffer(handle)
    pitch = HIDDEN + HIDDEN // 64
    assert target.dtype == torch.bfloat16 and target.shape == recv_x.shape
    assert target.stride() == (rank.size * MOST * pitch, pitch, 1)
    target.copy_(garbage(recv_x * 2, count))
    for hook in (False, True):
        combined, _, receive = buffer.low_latency_combine(
            torch.zeros_like(recv_x), batch.ids, batch.weights, handle, zero_copy=True, return_recv_hook=hook
        )
        if hook:
            receive()
        close(combined, back(batch, 2.0))
    close(buffer.low_latency_combine(recv_x, batch.ids, batch.weights, handle, True)[0], back(batch), 0.05)  # LogFMT


def test_out_and_zero_copy(world):
    world.run(out_body)


def stats_body(rank):
    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    local = len(oracle.owned(rank.rank, rank.size, EXPERTS))
    counts = torch.full((local,), 100, dtype=torch.int32)
    for shape in ((rank.size,), (rank.size, rank.size)):
        waits = torch.zeros(shape, dtype=torch.int64)
        for hook in (False, True):
            before = counts.clone()
            recv_x, count, handle, _, receive = buffer.low_latency_dispatch(
                batch.x,
                batch.ids,
                MOST,
                EXPERTS,
                use_fp8=False,
                cumulative_local_expert_recv_stats=counts,
                dispatch_wait_recv_cost_stats=waits,
                return_recv_hook=hook,
            )
            if hook:
                receive()
            same(counts, before + count, "cumulative_local_expert_recv_stats")
            _, _, receive = buffer.low_latency_combine(
                recv_x, batch.ids, batch.weights, handle, combine_wait_recv_cost_stats=waits, return_recv_hook=hook
            )
            if hook:
                receive()
        assert bool((waits >= 0).all())


def test_statistics(world):
    world.run(stats_body)


def modes_body(rank):
    """Normal mode and low latency on one buffer, with different sizes, and the clean call that clients make."""
    buffer = make(rank)
    batch = everyone(rank)[rank.rank]
    for hidden, most in ((512, 16), (128, 64), (1024, 20), (512, 16)):
        layout = buffer.get_dispatch_layout(batch.ids, EXPERTS)
        recv_x, _, weights, _, handle, _ = buffer.dispatch(
            batch.x, None, layout[0], layout[1], layout[3], layout[2], batch.ids, batch.weights
        )
        reached = oracle.ranks_reached(batch, rank.size, EXPERTS).to(batch.x.dtype)
        same(buffer.combine(recv_x, handle)[0], batch.x * reached, "combined_x of normal mode")
        buffer.clean_low_latency_buffer(most, hidden, EXPERTS)
        other = everyone(rank, hidden=hidden)[rank.rank]
        recv_x, _, ll_handle, _, _ = buffer.low_latency_dispatch(other.x, other.ids, most, EXPERTS, use_fp8=False)
        assert recv_x.shape[1:] == (rank.size * most, hidden)
        close(buffer.low_latency_combine(recv_x, other.ids, other.weights, ll_handle)[0], back(other))


def test_modes_and_sizes_share_a_buffer(world):
    world.run(modes_body)


def wrong_body(rank):
    buffer = make(rank)
    batch = everyone(rank, (4, 4, 4, 4))[rank.rank]
    good = {"x": batch.x, "topk_idx": batch.ids, "num_max_dispatch_tokens_per_rank": MOST, "num_experts": EXPERTS}
    wrong = {
        "x of float16": ({"x": batch.x.half()}, "x is .*bfloat16"),
        "async and hook": ({"async_finish": True, "return_recv_hook": True}, "async_finish.*return_recv_hook"),
        "UE8M0 without round_scale": ({"use_ue8m0": True}, "use_ue8m0.*round_scale"),
        "ids of other tokens": ({"topk_idx": batch.ids[:2]}, "topk_idx has 2 rows"),
        "ids past the end": ({"topk_idx": batch.ids + EXPERTS}, "ids.*legal"),
        "statistics of another shape": (
            {"cumulative_local_expert_recv_stats": torch.zeros(99, dtype=torch.int32)},
            "cumulative_local_expert_recv_stats.*int32",
        ),
        "fp8 and nvfp4": ({"use_nvfp4": True}, "use_fp8.*use_nvfp4"),
        "too many tokens": ({"x": torch.cat([batch.x] * 5), "topk_idx": torch.cat([batch.ids] * 5)}, "20 tokens.*16"),
    }
    if rank.device.type == "cuda":  # nobody waits for these calls, so nobody is told
        wrong = {name: one for name, one in wrong.items() if name not in LATE}
    for name, (change, says) in wrong.items():
        if rank.rank == 0:
            raises(lambda: buffer.low_latency_dispatch(**{**good, **change}), says)  # noqa: B023
        else:
            refused_elsewhere(lambda: buffer.low_latency_dispatch(**good))
        recv_x, _, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
        close(buffer.low_latency_combine(recv_x, batch.ids, batch.weights, handle)[0], back(batch))
        assert name
    for change, says in (
        ({"x": recv_x[:, :1]}, "x is .*legal"),
        ({"topk_weights": batch.weights.double()}, "topk_weights.*float32"),
        ({"topk_idx": batch.ids[:1]}, "topk_idx"),
        ({"out": torch.zeros(1, 2)}, "out"),
        ({"zero_copy": True}, "zero_copy.*get_next_low_latency_combine_buffer"),
    ):
        arguments = {"x": recv_x, "topk_idx": batch.ids, "topk_weights": batch.weights, "handle": handle}
        if rank.rank == 0:
            raises(lambda: buffer.low_latency_combine(**{**arguments, **change}), says)  # noqa: B023
        else:
            refused_elsewhere(lambda: buffer.low_latency_combine(**arguments))  # noqa: B023
    raises(lambda: buffer.low_latency_combine(recv_x, batch.ids, batch.weights, ("a",) * 5), "handle.*legal")
    raises(lambda: buffer.low_latency_dispatch(batch.x, batch.ids, 0, EXPERTS), "num_max_dispatch.*1 or more")
    raises(lambda: buffer.low_latency_dispatch(None, batch.ids, MOST, EXPERTS), "x is NoneType")
    raises(lambda: buffer.low_latency_dispatch(batch.x, None, MOST, EXPERTS), "topk_idx is a NoneType")
    # Numbers of other types are looked at, not found among known calls.
    slab = buffer.low_latency_dispatch(batch.x, batch.ids, float(MOST), float(EXPERTS), use_fp8=False)[0]
    assert slab.shape[1] == rank.size * MOST


def test_wrong_arguments_are_errors_on_all_ranks(world):
    world.run(wrong_body)
