"""Buffer's low-latency mode: slabs, casts and their packing, hooks, handles, statistics."""

import deep_ep
import oracle
import pytest
import torch
from oracle import same

pytestmark = pytest.mark.ll

EXPERTS, MOST, HIDDEN = 12, 16, 512


def make(rank, hidden=HIDDEN, **settings):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(MOST, hidden, rank.size, EXPERTS)
    return deep_ep.Buffer(rank.group, 0, size, low_latency_mode=True, num_qps_per_rank=EXPERTS, **settings)


def everyone(rank, sizes=(5, 16, 0, 9), hidden=HIDDEN, seed=0, topk=3):
    return oracle.batches(sizes[: rank.size], hidden=hidden, experts=EXPERTS, seed=seed, topk=topk)


def check_slab(rank, all_batches, recv_x, count, handle, hidden=HIDDEN):
    """Every received row is the row of the token that src_info and layout_range name, each token once."""
    src_info, layout_range, most, hidden_of, experts = handle
    mine = oracle.owned(rank.rank, rank.size, EXPERTS)
    assert (most, hidden_of, experts) == (MOST, hidden, EXPERTS)
    assert count.dtype == torch.int32 and count.shape == (len(mine),)
    assert src_info.dtype == torch.int32 and src_info.shape == (len(mine), rank.size * MOST)
    assert layout_range.dtype == torch.int64 and layout_range.shape == (len(mine), rank.size)
    for local, expert in enumerate(mine):
        wanted = oracle.expert_rows(all_batches, expert)
        assert int(count[local]) == len(wanted)
        for source in range(rank.size):
            packed = int(layout_range[local, source])
            begin, many = packed >> 32, packed & 0xFFFFFFFF
            tokens = src_info[local, begin : begin + many].tolist()
            assert sorted(tokens) == [token for src, token, _ in wanted if src == source], "src_info"
            if many and recv_x is not None:
                same(recv_x[local, begin : begin + many], all_batches[source].x[tokens], "recv_x")


def back(batch, factor=1.0):
    """What combine brings back if experts change nothing."""
    total = oracle.weights_of(batch).sum(dim=1, keepdim=True)
    return batch.x.float() * total * factor


def close(seen, wanted, tolerance=0.01):
    assert seen.dtype == torch.bfloat16 and seen.shape == wanted.shape
    assert torch.allclose(seen.float(), wanted, rtol=tolerance, atol=tolerance * 8), (seen.float() - wanted).abs().max()


def garbage(y, count):
    """Rows that hold nothing become NaN: nobody may read them."""
    y = y.clone()
    for local, n in enumerate(count.tolist()):
        y[local, n:] = float("nan")
    return y


def bf16_body(rank, hook, sizes):
    buffer = make(rank)
    for seed in range(3):
        every = everyone(rank, sizes, seed=seed)
        batch = every[rank.rank]
        recv_x, count, handle, event, receive = buffer.low_latency_dispatch(
            batch.x, batch.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=hook
        )
        assert type(handle) is tuple and len(handle) == 5
        assert event.event is None and (receive is not None) == hook
        if hook:
            receive()
        assert recv_x.shape == (len(count), rank.size * MOST, HIDDEN) and recv_x.is_contiguous()
        check_slab(rank, every, recv_x, count, handle)
        weights = batch.weights
        combined, event, receive = buffer.low_latency_combine(
            garbage(recv_x, count), batch.ids, weights, handle, return_recv_hook=hook
        )
        assert event.event is None and (receive is not None) == hook
        if hook:
            receive()
        close(combined, back(batch))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("hook", [False, True])
def test_bfloat16_round_trip(world, hook, ranks):
    if ranks > world.size:
        pytest.skip(f"{world.size} ranks")
    world.run(bf16_body, hook, (5, 16, 0, 9), ranks=ranks)


@pytest.mark.parametrize("hook", [False, True])
def test_no_tokens_anywhere(world, hook):
    world.run(bf16_body, hook, (0, 0, 0, 0))


def power_of_two(scale):
    """The least power of two that is not below, by its bits."""
    bits = scale.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def quantised(x, round_scale):
    """(q float8, scale) of [n, H] bfloat16: scale is a product with fl(1 / 448), q a product with 448 / amax."""
    blocks = x.float().unflatten(1, (-1, 128))
    largest = blocks.abs().amax(dim=2).clamp(min=1e-4)
    scale = largest * torch.tensor(1 / 448, dtype=torch.float32)
    factor = torch.full_like(largest, 448.0) / largest  # a quotient; 448.0 / largest is a product in torch
    if round_scale:
        scale = power_of_two(scale)
        factor = 1.0 / scale
    q = (blocks * factor[:, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q.flatten(1), scale


def fp8_body(rank, hook, round_scale, use_ue8m0):
    buffer = make(rank)
    every = everyone(rank)
    for r, one in enumerate(every):
        made = torch.Generator(device="cpu").manual_seed(7 + r)
        with torch.device("cpu"):
            one.x = (torch.randn(one.x.shape, generator=made) * 3).to(torch.bfloat16).to(one.x.device)
    batch = every[rank.rank]
    (q, scales), count, handle, _, receive = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, EXPERTS, round_scale=round_scale, use_ue8m0=use_ue8m0, return_recv_hook=hook
    )
    if hook:
        receive()
    rows, blocks = rank.size * MOST, HIDDEN // 128
    words = blocks // 4 if use_ue8m0 else blocks
    assert q.dtype == torch.float8_e4m3fn and q.shape == (len(count), rows, HIDDEN) and q.is_contiguous()
    assert scales.dtype == (torch.int32 if use_ue8m0 else torch.float32)
    assert scales.shape == (len(count), rows, words) and scales.stride() == (words * rows, 1, rows)
    check_slab(rank, every, None, count, handle)
    for local in range(len(count)):
        for source in range(rank.size):
            packed = int(handle[1][local, source])
            begin, many = packed >> 32, packed & 0xFFFFFFFF
            tokens = handle[0][local, begin : begin + many].long()
            want_q, want_scale = quantised(every[source].x[tokens], round_scale)
            same(q[local, begin : begin + many].view(torch.uint8), want_q.view(torch.uint8), "q")
            seen = scales[local, begin : begin + many].clone(memory_format=torch.contiguous_format)
            if use_ue8m0:
                same(seen.view(torch.uint8), (want_scale.view(torch.int32) >> 23).to(torch.uint8), "UE8M0 bytes")
            else:
                same(seen, want_scale, "scales")
    wide = scales
    if use_ue8m0:
        dense = scales.clone(memory_format=torch.contiguous_format)
        wide = (dense.view(torch.uint8).to(torch.int32) << 23).view(torch.float32)
    y = (q.float().unflatten(2, (-1, 128)) * wide[..., None]).flatten(2).to(torch.bfloat16)
    combined, _, receive = buffer.low_latency_combine(
        garbage(y, count), batch.ids, batch.weights, handle, return_recv_hook=hook
    )
    if hook:
        receive()
    wanted = back(batch)
    difference = (combined.float() - wanted).norm() / wanted.norm().clamp(min=1e-6)
    assert difference < 0.05, difference


@pytest.mark.parametrize("round_scale, use_ue8m0", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("hook", [False, True])
def test_fp8_casts_bit_by_bit(world, hook, round_scale, use_ue8m0):
    world.run(fp8_body, hook, round_scale, use_ue8m0)


def overlap_body(rank):
    """Two micro-batches in flight, their halves in any order: A and B dispatched, A combined, B combined."""
    buffer = make(rank)
    a_all, b_all = everyone(rank, seed=1), everyone(rank, (3, 0, 12, 7), seed=2)
    a, b = a_all[rank.rank], b_all[rank.rank]
    for _ in range(3):
        ax, a_count, a_handle, _, a_hook = buffer.low_latency_dispatch(
            a.x, a.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        bx, b_count, b_handle, _, b_hook = buffer.low_latency_dispatch(
            b.x, b.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        a_hook()
        check_slab(rank, a_all, ax, a_count, a_handle)
        b_hook()
        check_slab(rank, b_all, bx, b_count, b_handle)
        a_out, _, a_hook = buffer.low_latency_combine(ax, a.ids, a.weights, a_handle, return_recv_hook=True)
        b_out, _, b_hook = buffer.low_latency_combine(bx, b.ids, b.weights, b_handle, return_recv_hook=True)
        b_hook()
        a_hook()
        close(a_out, back(a))
        close(b_out, back(b))


def test_two_hooks_in_flight(world):
    world.run(overlap_body)


def dropped_body(rank):
    """A hook that is never called must not stop the calls after it."""
    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    for _ in range(5):
        buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, return_recv_hook=True)
    recv_x, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    check_slab(rank, every, recv_x, count, handle)


def test_a_hook_may_be_dropped(world):
    world.run(dropped_body)


def threads_body(rank):
    import threading

    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    recv_x, count, handle, _, hook = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True
    )
    thread = threading.Thread(target=hook)
    thread.start()
    thread.join(60)
    check_slab(rank, every, recv_x, count, handle)


def test_a_hook_may_be_called_by_another_thread(world):
    world.run(threads_body)


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


def twice_body(rank):
    """An expert twice in a token: one row, both weights."""
    buffer = make(rank, 128)
    x = torch.ones(1, 128, dtype=torch.bfloat16) * (rank.rank + 1)
    ids = torch.tensor([[3, 3, 7, -1]])
    weights = torch.tensor([[0.25, 0.5, 1.0, float("nan")]])
    for hook in (False, True):
        recv_x, count, handle, _, receive = buffer.low_latency_dispatch(
            x, ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=hook
        )
        if hook:
            receive()
        mine = oracle.owned(rank.rank, rank.size, EXPERTS)
        assert count.tolist() == [rank.size if e in (3, 7) else 0 for e in mine]
        combined, _, receive = buffer.low_latency_combine(recv_x, ids, weights, handle, return_recv_hook=hook)
        if hook:
            receive()
        same(combined, x * 1.75, "combined")


def test_an_expert_twice_in_a_token(world):
    world.run(twice_body)


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
    from test_v1_errors import LATE, raises, refused_elsewhere

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


def test_wrong_arguments_are_errors_on_all_ranks(world):
    world.run(wrong_body)


def mask_body(rank):
    buffer = make(rank, enable_shrink=True)
    every = everyone(rank)
    batch = every[rank.rank]
    status = torch.full((rank.size,), 9, dtype=torch.int32)
    gone = rank.size - 1
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * rank.size
    plain, _, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    close(buffer.low_latency_combine(plain, batch.ids, batch.weights, handle)[0], back(batch))
    torch.distributed.barrier(rank.group)
    if rank.rank != gone:
        buffer.low_latency_update_mask_buffer(gone, True)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [int(r == gone) for r in range(rank.size)]
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
        left = [
            one if r != gone else oracle.Batch(one.x[:0], one.ids[:0], one.weights[:0]) for r, one in enumerate(every)
        ]
        mine = oracle.owned(rank.rank, rank.size, EXPERTS)
        assert count.tolist() == [len(oracle.expert_rows(left, e)) for e in mine]
        combined = buffer.low_latency_combine(recv_x, batch.ids, batch.weights, handle)[0]
        here = batch.ids < oracle.first_expert(gone, rank.size, EXPERTS)
        kept = torch.where(here & (batch.ids >= 0), batch.weights, 0.0).sum(dim=1, keepdim=True)
        close(combined, batch.x.float() * kept)
    torch.distributed.barrier(rank.group)
    buffer.low_latency_clean_mask_buffer()
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * rank.size
    recv_x, _, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    close(buffer.low_latency_combine(recv_x, batch.ids, batch.weights, handle)[0], back(batch))


def test_masked_ranks_are_left_out_and_taken_in_again(world):
    world.run(mask_body)


def unshrunk_body(rank):
    from test_v1_errors import raises

    buffer = make(rank)
    for call in (
        lambda: buffer.low_latency_update_mask_buffer(0, True),
        lambda: buffer.low_latency_query_mask_buffer(torch.zeros(1, dtype=torch.int32)),
        buffer.low_latency_clean_mask_buffer,
    ):
        raises(call, "enable_shrink")


def test_masks_need_enable_shrink(world):
    world.run(unshrunk_body, ranks=1)
