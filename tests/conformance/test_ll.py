"""Buffer's low-latency mode: slabs, casts and their packing, handles."""

import oracle
import pytest
import torch
from oracle import same
from slabs import EXPERTS, HIDDEN, MOST, back, check_slab, close, everyone, garbage, make

pytestmark = pytest.mark.ll


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
