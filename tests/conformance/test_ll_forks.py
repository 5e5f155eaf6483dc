"""What forks add to low latency, and their clients pass."""

import deep_ep
import oracle
import pytest
import torch
from oracle import same
from slabs import EXPERTS, HIDDEN, MOST, back, check_slab, close, everyone, make
from test_v1_errors import raises

pytestmark = pytest.mark.ll


def weights_body(rank, hook):
    """topk_weights travel with the tokens, and say where each row comes from (branch hybrid-ep)."""
    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    recv_x, count, weights, sources, handle, event, receive = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, EXPERTS, topk_weights=batch.weights, use_fp8=False, return_recv_hook=hook
    )
    if hook:
        receive()
    check_slab(rank, every, recv_x, count, handle)
    assert weights.dtype == torch.float32 and sources.dtype == torch.int32
    assert weights.shape == sources.shape == handle[0].shape
    for local, expert in enumerate(oracle.owned(rank.rank, rank.size, EXPERTS)):
        wanted = sorted(oracle.expert_rows(every, expert))
        n = len(wanted)
        seen = zip(sources[local, :n].tolist(), handle[0][local, :n].tolist(), weights[local, :n].tolist(), strict=True)
        assert sorted(seen) == wanted


@pytest.mark.parametrize("hook", [False, True])
def test_weights_travel(world, hook):
    world.run(weights_body, hook)


def per_token_body(rank, use_ue8m0):
    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    (q, scales), count, handle, _, _ = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, EXPERTS, pertoken_quant=True, round_scale=use_ue8m0, use_ue8m0=use_ue8m0
    )
    check_slab(rank, every, None, count, handle)
    assert scales.shape == (*handle[0].shape, 1)
    wide = (scales << 23).view(torch.float32) if use_ue8m0 else scales
    y = (q.float() * wide).to(torch.bfloat16)
    y[:, 0] = torch.where(count[:, None] > 0, y[:, 0], 0)
    combined = buffer.low_latency_combine(y.nan_to_num(), batch.ids, batch.weights, handle)[0]
    assert (combined.float() - back(batch)).norm() <= 0.05 * back(batch).norm() + 1e-3


@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_one_scale_a_token(world, use_ue8m0):
    world.run(per_token_body, use_ue8m0)


def refused_body(rank):
    buffer = make(rank)
    batch = everyone(rank)[rank.rank]
    raises(
        lambda: buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False, use_nvfp4=True),
        "x_global_scale",
    )
    assert isinstance(deep_ep.__version__, str)


def test_what_is_not_served_says_so(world):
    world.run(refused_body, ranks=1)


def ready_body(rank, hook, scale_type):
    """4-bit rows that are quantised already (TensorRT-LLM's fork): bytes as they were."""
    buffer = make(rank)
    every = everyone(rank)
    numbers = [(torch.arange(len(b.x) * 288).view(-1, 288) * 7 + 31 * r).remainder(120) for r, b in enumerate(every)]
    rows = [one[:, :256].to(torch.uint8) for one in numbers]
    scales = [one[:, 256:].to(torch.uint8) for one in numbers]
    batch = every[rank.rank]
    mine = scales[rank.rank].contiguous().view(scale_type)
    q, sf, count, handle, _, receive = buffer.low_latency_dispatch_fp4(
        rows[rank.rank].contiguous(), mine, batch.ids, MOST, EXPERTS, return_recv_hook=hook
    )
    if hook:
        receive()
    check_slab(rank, every, None, count, handle)
    assert sf.dtype == scale_type and sf.shape == (*q.shape[:2], HIDDEN // 16)
    for local in range(len(count)):
        for source in range(rank.size):
            packed = int(handle[1][local, source])
            begin, end = packed >> 32, (packed >> 32) + (packed & 0xFFFFFFFF)
            tokens = handle[0][local, begin:end].long()
            same(q[local, begin:end], rows[source][tokens], "rows")
            same(sf[local, begin:end].view(torch.uint8), scales[source][tokens], "scales")
    y = torch.ones(*q.shape[:2], HIDDEN, dtype=torch.bfloat16)
    out = buffer.low_latency_combine_low_precision("fp8", y, None, batch.ids, batch.weights, handle)[0]
    close(out, oracle.weights_of(batch).sum(dim=1, keepdim=True).expand(-1, HIDDEN))
    if rank.size == 1:
        raises(lambda: buffer.low_latency_dispatch_fp4(rows[0], mine[:, :3], batch.ids, MOST, EXPERTS), "scales is")
        raises(
            lambda: buffer.low_latency_combine_low_precision("int4", y, None, batch.ids, batch.weights, handle),
            "precision is 'int4'",
        )


@pytest.mark.parametrize("scale_type", [torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("hook, ranks", [(False, 1), (True, 4)])
def test_ready_made_4_bit_rows(world, hook, ranks, scale_type):
    world.run(ready_body, hook, scale_type, ranks=min(ranks, world.size))
