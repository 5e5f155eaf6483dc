"""ElasticBuffer: one row a (token, expert), by expert."""

import oracle
import pytest
import torch
from elastic import EXPERTS, HIDDEN, MOST, SIZES, TOPK, make
from oracle import align, same

pytestmark = pytest.mark.v2


def capacity(ranks, topk, local, alignment):
    return align(ranks * MOST * min(topk, local) + (alignment - 1) * local, alignment)


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
