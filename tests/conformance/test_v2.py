"""ElasticBuffer: both layouts, sizes known or not, handles and what stands in them."""

import deep_ep
import oracle
import pytest
import torch
from oracle import align, same
from test_v1_errors import LATE, raises, refused_elsewhere, told_or_not

pytestmark = pytest.mark.v2

EXPERTS, MOST, TOPK, HIDDEN = 12, 40, 3, 256
SIZES = [(5, 7, 3, 4), (0, 40, 4, 1), (0, 0, 0, 0)]


def make(rank, **settings):
    settings = {"num_max_tokens_per_rank": MOST, "hidden": HIDDEN, "num_topk": TOPK, **settings}
    return deep_ep.ElasticBuffer(rank.group, **settings)


def capacity(ranks, topk, local, alignment):
    return align(ranks * MOST * min(topk, local) + (alignment - 1) * local, alignment)


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


def expanded_body(rank, sizes, alignment, do_cpu_sync, padded):
    buffer = make(rank)
    everyone = oracle.batches(sizes[: rank.size], experts=EXPERTS)
    batch = everyone[rank.rank]
    mine = oracle.owned(rank.rank, rank.size, EXPERTS)
    scales = batch.ids.float().clone()
    recv, ids, weights, handle, _ = buffer.dispatch(
        (batch.x.abs().to(torch.float8_e4m3fn), scales),
        batch.ids,
        batch.weights,
        num_experts=EXPERTS,
        expert_alignment=alignment,
        do_cpu_sync=do_cpu_sync,
        do_expand=True,
        do_zero_padding=padded,
        use_tma_aligned_col_major_sf=padded,
    )
    recv_x, recv_scales = recv
    assert ids is None
    rows = [oracle.expert_rows(everyone, e) for e in mine]
    starts = [0]
    for hits in rows:
        starts.append(starts[-1] + align(len(hits), alignment))
    total = starts[-1] if do_cpu_sync else capacity(rank.size, TOPK, len(mine), alignment)
    assert recv_x.shape == (total, HIDDEN) and weights.shape == (total,) and weights.dtype == torch.float32
    assert recv_scales.shape == (total, TOPK)
    assert recv_scales.stride() == ((1, align(total, 4)) if padded else (TOPK, 1)) or total <= 1
    for start, end, hits in zip(starts, starts[1:], rows, strict=False):
        for i, (source, token, weight) in enumerate(sorted(hits)):
            wanted = everyone[source].x[token].abs().to(torch.float8_e4m3fn)
            same(recv_x[start + i].view(torch.uint8), wanted.view(torch.uint8), "recv_x")
            same(recv_scales[start + i], everyone[source].ids[token].float(), "scales")
            assert float(weights[start + i]) == weight, "recv_topk_weights"
        if padded:
            gap = slice(start + len(hits), end)
            assert not recv_x[gap].view(torch.uint8).any() and not weights[gap].any() and not recv_scales[gap].any()
    counts = [align(len(hits), alignment) for hits in rows]
    assert handle.num_recv_tokens_per_expert_list == (counts if do_cpu_sync else [])
    ends = [start + len(hits) for start, hits in zip(starts, rows, strict=False)]
    assert handle.psum_num_recv_tokens_per_expert.tolist() == ends, "psum_num_recv_tokens_per_expert"
    assert handle.do_expand and (not do_cpu_sync or handle.num_expanded_tokens == total)
    arrived = oracle.arrivals(everyone, rank.rank, EXPERTS)
    metadata = handle.recv_src_metadata
    n = len(arrived.token)
    for row, (source, token) in enumerate(zip(arrived.source, arrived.token, strict=True)):
        assert int(metadata[row, 0]) == source * MOST + token
        for k, local in enumerate(arrived.ids[row].tolist()):
            want = -1 if local < 0 else starts[local] + sorted((s, t) for s, t, _ in rows[local]).index((source, token))
            assert int(metadata[row, 2 + k]) == want, "destination rows of recv_src_metadata"
    assert metadata.shape == (n, TOPK + 2) or not do_cpu_sync

    y = torch.full((total, HIDDEN), float("nan"), dtype=torch.bfloat16)
    for start, hits in zip(starts, rows, strict=False):
        for i, (source, token, _) in enumerate(sorted(hits)):
            y[start + i] = everyone[source].x[token]
    chosen = (batch.ids >= 0).sum(dim=1, keepdim=True).to(batch.x.dtype)
    combined, none, _ = buffer.combine(y, handle)
    assert none is None
    same(combined, batch.x * chosen, "combined_x")
    same(buffer.combine(y, handle, topk_weights=weights)[1], oracle.weights_of(batch), "combined_topk_weights")
    again, _, weights_again, _, _ = buffer.dispatch(
        batch.x, handle=handle, topk_weights=batch.weights, do_expand=True, do_zero_padding=True
    )
    assert again.shape == (total, HIDDEN)
    for start, end, hits in zip(starts, starts[1:], rows, strict=False):
        used = slice(start, start + len(hits))
        same(again[used], y[used], "recv_x of a cached dispatch")
        same(weights_again[used], weights[used], "recv_topk_weights of a cached dispatch")
        assert not again[start + len(hits) : end].any() and not weights_again[start + len(hits) : end].any()


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("alignment, do_cpu_sync, padded", [(1, True, False), (8, True, True), (128, False, True)])
@pytest.mark.parametrize("sizes", SIZES)
def test_expanded_layout(world, sizes, alignment, do_cpu_sync, padded, ranks):
    if ranks > world.size:
        pytest.skip(f"{world.size} ranks")
    world.run(expanded_body, sizes, alignment, do_cpu_sync, padded, ranks=ranks)


def rounding_body(rank):
    """Sums over ranks are of FP32 partial sums where several reductions are not allowed: rounded once."""
    local = EXPERTS // rank.size
    ids = torch.arange(EXPERTS)[None].expand(2, EXPERTS).contiguous()
    x = torch.randn(2, 64, generator=torch.Generator(device="cpu").manual_seed(rank.rank), device="cpu").bfloat16()
    x = x.to(torch.get_default_device())
    buffer = make(rank, hidden=64, num_topk=EXPERTS, allow_multiple_reduction=False)
    recv_x, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=EXPERTS, do_expand=True)
    factors = 1 + torch.arange(recv_x.shape[0]) % (2 * local)
    y = (recv_x.float() * factors[:, None] / 7).bfloat16()
    combined = buffer.combine(y, handle)[0]
    every = [torch.zeros_like(y) for _ in range(rank.size)]
    torch.distributed.all_gather(every, y, group=rank.group)
    total = torch.zeros(2, 64)
    for rows in every:
        total += rows.float().view(local, rank.size, 2, 64)[:, rank.rank].sum(dim=0)
    assert (
        torch.equal(combined, total.bfloat16()) or (combined.float() - total).abs().max() <= 2**-8 * total.abs().max()
    )
    exact = (combined.float() - total).abs() <= total.abs() * 2**-8
    assert bool(exact.all()), "more than one rounding"


def test_a_single_rounding(world):
    world.run(rounding_body, ranks=2)


def settings_body(rank):
    buffer = make(rank, prefer_overlap_with_compute=False, explicitly_destroy=True)
    assert (buffer.rank_idx, buffer.num_ranks, buffer.group) == (rank.rank, rank.size, rank.group)
    assert buffer.num_max_tokens_per_rank == MOST and buffer.num_bytes % (2 << 20) == 0 and buffer.num_bytes > 0
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint
    assert buffer.num_bytes >= hint(rank.group, MOST, HIDDEN, TOPK)
    assert hint(rank.group, 4096, 7168) > hint(rank.group, 4096, 7168, 8) > hint(rank.group, 2048, 7168, 8)
    assert buffer.num_scaleout_ranks * buffer.num_scaleup_ranks == rank.size
    assert buffer.num_rdma_ranks * buffer.num_nvlink_ranks == rank.size
    assert buffer.get_logical_domain_size() == (buffer.num_scaleout_ranks, buffer.num_scaleup_ranks)
    assert deep_ep.get_physical_domain_size(rank.group) == buffer.get_physical_domain_size()
    sms = buffer.get_theoretical_num_sms(256, 8)
    assert sms >= 64 and sms % 2 == 0 and sms == buffer.get_theoretical_num_sms(256, 8)
    assert 0 < buffer.get_theoretical_num_qps(sms) <= buffer.num_allocated_qps
    buffer.barrier()
    buffer.get_comm_stream()
    event = buffer.capture()
    assert isinstance(event, deep_ep.EventHandle)
    batch = oracle.make_batch(rank.rank, 4, experts=EXPERTS)
    *_, end = buffer.dispatch(
        batch.x, batch.ids, num_experts=EXPERTS, previous_event=event, allocate_on_comm_stream=True, num_sms=8
    )
    assert end.event is None
    for most in (4, 40, 9):  # varies from call to call
        recv_x, *_ = buffer.dispatch(
            batch.x, batch.ids, num_experts=EXPERTS, num_max_tokens_per_rank=most, do_cpu_sync=False
        )
        assert recv_x.shape[0] == most * rank.size
    buffer.barrier(use_comm_stream=False, with_cpu_sync=True)
    buffer.destroy()
    raises(lambda: buffer.dispatch(batch.x, batch.ids, num_experts=EXPERTS), "destroyed")


def test_settings_and_life(world):
    world.run(settings_body)


def wrong_body(rank):
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, 4, experts=EXPERTS)
    good = {"x": batch.x, "topk_idx": batch.ids, "topk_weights": batch.weights, "num_experts": EXPERTS}
    recv_x, _, _, handle, _ = buffer.dispatch(**good)
    wrong = {
        "x of float64": ({"x": batch.x.double()}, "x is float64"),
        "ids of float": ({"topk_idx": batch.ids.float()}, "topk_idx.*int64"),
        "ids past the end": ({"topk_idx": batch.ids + EXPERTS}, "ids.*legal"),
        "weights of float64": ({"topk_weights": batch.weights.double()}, "topk_weights.*float32"),
        "alignment 0": ({"expert_alignment": 0}, "expert_alignment.*1 or more"),
        "M too large": ({"num_max_tokens_per_rank": MOST + 1}, f"num_max_tokens_per_rank.*{MOST}"),
        "M too small": ({"num_max_tokens_per_rank": 3}, "4 tokens"),
        "stats of int64": (
            {"cumulative_local_expert_recv_stats": torch.zeros(1, dtype=torch.int64)},
            "cumulative_local_expert_recv_stats.*int32",
        ),
    }
    for name, (change, says) in wrong.items():
        if rank.rank == 0:
            raises(lambda: buffer.dispatch(**{**good, **change}), says)  # noqa: B023
        elif name in LATE and rank.device.type == "cuda":
            told_or_not(lambda: buffer.dispatch(**good), "rank 0 refused")
        else:
            raises(lambda: buffer.dispatch(**good), "rank 0 refused|disagree")
        same(buffer.dispatch(**good)[0], recv_x, f"recv_x after {name}")
    for change, says in (
        ({"topk_idx": batch.ids}, "topk_idx"),
        ({"num_experts": EXPERTS + 1}, "num_experts"),
        ({"expert_alignment": 16}, "expert_alignment"),
        ({"num_max_tokens_per_rank": 8}, "num_max_tokens_per_rank"),
    ):
        arguments = {"x": batch.x, "handle": handle, **(change if rank.rank == 0 else {})}
        raises(lambda: buffer.dispatch(**arguments), says if rank.rank == 0 else "rank 0 refused")  # noqa: B023
    for change, says in (
        ({"x": recv_x[:-1]}, "x has"),
        ({"topk_weights": torch.ones(1, 1)}, "topk_weights"),
        ({"bias": (batch.x,) * 3}, "bias has 3"),
    ):
        if rank.rank == 0:
            raises(lambda: buffer.combine(**{"x": recv_x, "handle": handle, **change}), says)  # noqa: B023
        else:
            refused_elsewhere(lambda: buffer.combine(recv_x, handle))
    raises(lambda: buffer.combine(recv_x, (1, 2)), "handle is a tuple")
    raises(lambda: buffer.dispatch(batch.x, handle=7), "handle is a int")
    raises(lambda: buffer.dispatch(batch.x, batch.ids), "num_experts is None")
    raises(lambda: buffer.dispatch(**good, previous_event=buffer.capture()), "allocate_on_comm_stream")
    raises(lambda: buffer.get_theoretical_num_sms(8, 9), "num_topk = 9")
    raises(buffer.destroy, "explicitly_destroy")
    raises(lambda: deep_ep.ElasticBuffer(rank.group), "num_bytes is None")
    same(buffer.combine(recv_x, handle)[0], batch.x * oracle.ranks_reached(batch, rank.size, EXPERTS), "combined_x")


def test_wrong_arguments_are_errors_on_all_ranks(world):
    world.run(wrong_body)


def layers_body(rank):
    """Forward and backward as torchtitan does: expand, GEMMs by psum, cached dispatch of gradients."""
    buffer = make(rank)
    batch = oracle.make_batch(rank.rank, (6, 0, 11, 2)[rank.rank], experts=EXPERTS)

    class Send(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weights):
            recv_x, _, recv_weights, ctx.handle, _ = buffer.dispatch(
                x, batch.ids, weights, num_experts=EXPERTS, do_expand=True, do_zero_padding=True, expert_alignment=4
            )
            return recv_x, recv_weights

        @staticmethod
        def backward(ctx, grad, grad_weights):
            return buffer.combine(grad, ctx.handle, topk_weights=grad_weights)[:2]

    class Return(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, handle):
            ctx.handle = handle
            return buffer.combine(y, handle)[0]

        @staticmethod
        def backward(ctx, grad):
            return buffer.dispatch(grad.contiguous(), handle=ctx.handle, do_zero_padding=True)[0], None

    x = batch.x.float().requires_grad_()
    weights = oracle.weights_of(batch).requires_grad_()
    recv_x, recv_weights = Send.apply(x, weights)
    handle = recv_x.grad_fn.handle
    out = Return.apply(recv_x * recv_weights[:, None] * 3, handle)
    out.sum().backward()
    total = oracle.weights_of(batch).sum(dim=1, keepdim=True) * 3
    same(out.detach(), x.detach() * total, "out")
    same(x.grad, total.expand(x.shape), "gradient of x")
    slope = torch.where(batch.ids < 0, 0.0, 3 * x.detach().sum(dim=1, keepdim=True).expand(batch.ids.shape))
    same(weights.grad, slope, "gradient of weights")


def test_training_through_handles(world):
    world.run(layers_body)
