"""The experimental parts of V2, and their names of 2.5."""

import deep_ep
import pytest
import torch
from oracle import same
from test_v1_errors import raises

pytestmark = pytest.mark.v2

SHAPES = ((3,), (2, 5), (0, 4), (70, 1000))


def value(rank, shape, dtype):
    return ((torch.arange(torch.Size(shape).numel()) + 7 * rank) % 100).view(shape).to(dtype)


def gather_body(rank):
    buffer = deep_ep.ElasticBuffer(rank.group, 1 << 25)
    most = deep_ep.ElasticBuffer.get_agrs_num_max_session_bytes(rank.group, [(70, 1000)], torch.float32)
    assert most >= rank.size * 70 * 1000 * 4
    assert deep_ep.ElasticBuffer.get_agrs_buffer_size_hint(rank.group, most) >= most
    buffer.agrs_set_config(most, 32)
    with buffer.agrs_new_session():
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
            *gathered, handle = buffer.all_gather([value(rank.rank, shape, dtype) for shape in SHAPES])
            handle.wait()
            for one, shape in zip(gathered, SHAPES, strict=True):
                same(one, torch.stack([value(r, shape, dtype) for r in range(rank.size)]), f"all_gather of {shape}")
        own = buffer.agrs_get_inplace_tensor((4, 4), torch.float32)
        own.fill_(rank.rank)
        one, handle = buffer.all_gather(own)
        handle()
        assert one[:, 0, 0].tolist() == list(range(rank.size))
    buffer.create_agrs_session()
    buffer.destroy_agrs_session()
    bucket = deep_ep.BucketBuffer(rank.group, 1 << 25)
    with bucket.new_session():
        assert bucket.all_gather(own)[0].shape == (rank.size, 4, 4)


def test_all_gather(world):
    world.run(gather_body)


def ring_body(rank, in_flight):
    buffer = deep_ep.ElasticBuffer(rank.group, 1 << 25)
    raises(lambda: buffer.pp_send(torch.zeros(1), 0), "pp_set_config")
    assert deep_ep.ElasticBuffer.get_pp_buffer_size_hint(1 << 20, 4) >= 16 << 20
    buffer.pp_set_config(1 << 20, in_flight)
    ahead, behind = (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    for turn in range(3):
        shape = (100 * turn + 1, 256)
        for to in (ahead, behind):
            for i in range(in_flight):  # all are sent before any is received
                buffer.pp_send(value(rank.rank + 10 * i, shape, torch.bfloat16), to)
        for source in (behind, ahead):
            for i in range(in_flight):
                tensor = torch.zeros(shape, dtype=torch.bfloat16)
                buffer.pp_recv(tensor, source)
                same(tensor, value(source + 10 * i, shape, torch.bfloat16), "pp_recv")
    raises(lambda: buffer.pp_send(torch.zeros(1 << 20), ahead), "t is float32")
    raises(lambda: buffer.pp_recv(torch.zeros(1), rank.rank), "src_rank_idx")


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("ranks", [3, 4])
def test_ring(world, in_flight, ranks):
    if ranks > world.size:
        pytest.skip(f"{world.size} ranks")
    world.run(ring_body, in_flight, ranks=ranks)


def engram_body(rank):
    buffer = deep_ep.ElasticBuffer(rank.group, 1 << 25)
    entries, hidden = 50, 32
    assert deep_ep.ElasticBuffer.get_engram_storage_size_hint(entries, hidden, 8)[0] > 0
    table = torch.cat([value(r, (entries, hidden), torch.bfloat16) for r in range(rank.size)])
    indices = (torch.arange(24) * 37 + rank.rank).remainder(entries * rank.size).to(torch.int32).view(8, 3)
    for one in (buffer, deep_ep.EngramBuffer(rank.group, 1 << 25)):
        one.engram_write(table[rank.rank * entries : (rank.rank + 1) * entries])
        rows, scales = one.engram_fetch(indices)()
        same(rows, table[indices.long()], "engram_fetch")
        assert scales is None
    if rank.device.type == "cpu":
        raises(lambda: buffer.engram_fetch(indices + 10_000), "indices has")
    else:
        assert not buffer.engram_fetch(indices + 10_000)()[0].any()
    raises(lambda: buffer.engram_fetch(indices.long()), "indices is int64")


def test_engram(world):
    world.run(engram_body)


def engram_scales_body(rank, dtype):
    """Scales come with their rows, row by row or as TMA reads them."""
    buffer = deep_ep.ElasticBuffer(rank.group, 1 << 25)
    entries, columns = 50, 3
    every = torch.cat([value(r, (entries, columns), dtype) for r in range(rank.size)])
    mine = slice(rank.rank * entries, (rank.rank + 1) * entries)
    rows = value(rank.rank, (entries, 32), torch.float32).to(torch.float8_e4m3fn)
    buffer.engram_write(rows, every[mine])
    indices = (torch.arange(14) * 37 + rank.rank).remainder(entries * rank.size).to(torch.int32).view(7, 2)
    plain = buffer.engram_fetch(indices)()[1]
    same(plain, every[indices.long()], "scales")
    if dtype.itemsize != 4:
        raises(lambda: buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=True), "use_tma_aligned_col_major_sf")
        return
    turned = buffer.engram_fetch(indices, use_tma_aligned_col_major_sf=True)()[1]
    same(turned, plain, "column-major scales")
    assert turned.stride() == (2, 1, 16), turned.stride()  # 14 rows, rounded up


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8])
def test_engram_scales(world, dtype):
    world.run(engram_scales_body, dtype)
