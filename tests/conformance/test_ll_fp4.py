"""Low-latency rows of 4-bit elements (branch hybrid-ep), bit by bit."""

import pytest
import torch
from oracle import same
from slabs import EXPERTS, HIDDEN, MOST, check_slab, everyone, make
from test_v1_errors import raises

pytestmark = pytest.mark.ll

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def check_layout(q, sf, handle, scale_type):
    experts, rows = handle[0].shape
    tiles, columns = -(-rows // 128), HIDDEN // 64
    assert q.shape == (rows, HIDDEN // 2, experts) and q.dtype == torch.uint8
    assert q.stride() == (HIDDEN // 2, 1, rows * HIDDEN // 2)
    assert sf.shape == (32, 4, tiles, 4, columns, experts) and sf.dtype == scale_type
    assert sf.stride() == (16, 4, columns * 512, 1, 512, tiles * columns * 512)


def rows_of(rank, every, q, sf, handle):
    """Each received row: what was sent, in blocks of 16; its codes; its scales."""
    block = torch.arange(HIDDEN // 16)
    for local in range(handle[0].shape[0]):
        for source in range(rank.size):
            packed = int(handle[1][local, source])
            for row in range(packed >> 32, (packed >> 32) + (packed & 0xFFFFFFFF)):
                x = every[source].x[int(handle[0][local, row])].float().unflatten(0, (-1, 16))
                scales = sf[row % 32, row % 128 // 32, row // 128, block % 4, block // 4, local].contiguous()
                yield x, q[row, :, local], scales


def check_nearest(x, codes, steps, exact=False):
    """Each element is the nearest of its block's values; with `exact` steps, of two as near the one with the even
    code."""
    table = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)])
    seen = torch.stack([codes & 15, codes >> 4], dim=1).flatten().long().unflatten(0, (-1, 16))
    away = (table[None, None, :] * steps[:, None, None] - x[:, :, None]).abs()
    least = away.amin(dim=2)
    mine = away.gather(2, seen[:, :, None])[:, :, 0]
    assert torch.allclose(mine, least, atol=1e-5), "an element is not the nearest"
    if not exact:
        return
    ties = (away == least[:, :, None]).sum(dim=2) == 2
    ties &= x != 0  # which has two codes
    assert not (seen[ties] & 1).any(), "of two as near, the odd code"


def nvfp4_body(rank, hook):
    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    gain = torch.tensor(448.0 * 6 / 8)
    (q, sf), count, handle, _, receive = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, EXPERTS, use_fp8=False, use_nvfp4=True, x_global_scale=gain, return_recv_hook=hook
    )
    if hook:
        receive()
    check_layout(q, sf, handle, torch.float8_e4m3fn)
    check_slab(rank, every, None, count, handle)
    for x, codes, seen in rows_of(rank, every, q, sf, handle):
        scale = (gain * (x.abs().amax(dim=1) * (1 / 6))).clamp(max=448).to(torch.float8_e4m3fn)
        same(seen.view(torch.uint8), scale.view(torch.uint8), "scales of 16 channels")
        check_nearest(x, codes, scale.float() / gain)


@pytest.mark.parametrize("hook", [False, True])
def test_nvfp4_bit_by_bit(world, hook):
    world.run(nvfp4_body, hook)


def by_powers_body(rank):
    """use_ue8m0_for_sf: the least power of two that keeps a block within 6, a byte each; no factor."""
    buffer = make(rank)
    every = everyone(rank)
    for one in every:
        one.x[:, :16] = 0  # a block of zeros
        one.x[:, 16:32] = torch.tensor([6.0, -5.0, 2.5, 3.5, 0.25, -0.75, 1.25, 1.75] * 2)  # 6 itself, and ties
        one.x[:, 32:48] *= 2.0**-40
    batch = every[rank.rank]
    (q, sf), count, handle, _, _ = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, EXPERTS, use_fp8=False, use_nvfp4=True, use_ue8m0_for_sf=True
    )
    check_layout(q, sf, handle, torch.uint8)
    check_slab(rank, every, None, count, handle)
    for x, codes, seen in rows_of(rank, every, q, sf, handle):
        largest = x.abs().amax(dim=1).double()
        steps = torch.exp2(seen.double() - 127)
        empty = largest == 0
        assert bool((seen[empty] == 0).all()) and not codes.unflatten(0, (-1, 8))[empty].any()
        assert int(seen[1]) == 127, "a block with 6 as its largest"
        fits, half = largest <= 6 * steps, largest <= 6 * steps / 2
        assert bool((fits & ~half)[~empty].all()), "not the least power of two that holds the block"
        check_nearest(x[~empty], codes.unflatten(0, (-1, 8))[~empty].flatten(), steps.float()[~empty], exact=True)
    raises(
        lambda: buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_ue8m0_for_sf=True),
        "use_ue8m0_for_sf is True.* use_nvfp4",
    )


def test_powers_of_two_as_scales(world):
    world.run(by_powers_body)
