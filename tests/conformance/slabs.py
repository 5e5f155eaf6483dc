"""What tests of low-latency calls share: a buffer, batches, and checks of slabs."""

import deep_ep
import oracle
import torch
from oracle import same

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
        assert int(count[local]) == len(wanted), f"recv_count is {count.tolist()}, wanted {len(wanted)} at {local}"
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
