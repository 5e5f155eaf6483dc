"""deep_ep.utils: what test programs import."""

import math

import oracle
import pytest
import torch
from deep_ep.utils import envs, gate, refs, testing
from deep_ep.utils import math as deep_math
from oracle import same

pytestmark = pytest.mark.utils


def test_casts_go_there_and_back():
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    q, scales = deep_math.per_token_cast_to_fp8(x)
    assert q.dtype == torch.float8_e4m3fn and q.shape == x.shape and q.is_contiguous()
    assert scales.dtype == torch.float32 and scales.shape == (5, 3)
    blocks = torch.nn.functional.pad(x.float(), (0, 84)).unflatten(1, (3, 128)).abs().amax(dim=2)
    same(scales, blocks.clamp(min=1e-4) / 448.0, "scales")
    back = deep_math.per_token_cast_back(q, scales)
    assert back.dtype == torch.bfloat16 and deep_math.calc_diff(back, x) < 1e-3
    assert deep_math.per_token_cast_back(q[:0], scales[:0]).shape == (0, 300)
    x = x[:, :256].repeat(1, 2)
    q, scales = deep_math.per_token_cast_to_fp8(x)
    words = (127 + torch.ceil(torch.log2(scales))).to(torch.uint8).view(torch.int32)
    wide = torch.exp2(torch.ceil(torch.log2(scales)))
    same(deep_math.per_token_cast_back(q, words), deep_math.per_token_cast_back(q, wide), "UE8M0 scales")


def test_calc_diff():
    x = torch.arange(6.0)
    assert deep_math.calc_diff(x, x) == pytest.approx(0, abs=1e-12)
    a, b = x.double() + 1, x.double() + 2
    assert deep_math.calc_diff(x, x + 1) == pytest.approx(float(1 - 2 * (a * b).sum() / (a * a + b * b).sum()))


def test_small_helpers():
    x = torch.tensor([[3, 1, 3, -1], [-1, -1, -1, -1], [0, 1, 2, 4]])
    deep_math.inplace_unique(x, 5)
    assert x.tolist() == [[3, 1, -1, -1], [-1] * 4, [4, 2, 1, 0]]
    scores = torch.ones(2, 6)
    grouped = deep_math.create_grouped_scores(scores, torch.tensor([[0, 2], [1, 1]]), 3)
    assert grouped.tolist() == [[1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]]
    assert deep_math.hash_tensor(torch.ones(8)) == deep_math.hash_tensor(torch.ones(8)) != 0
    assert deep_math.count_bytes(torch.zeros(3), (torch.zeros(2, dtype=torch.int64), None)) == 28
    assert deep_math.align(13, 8) == 16 and deep_math.ceil_div(13, 8) == 2


def test_bench_counts_calls():
    calls = []
    mean, least, most = testing.bench(lambda: calls.append(1), 2, 5)
    assert len(calls) == 7 and 0 <= least <= mean <= most
    assert isinstance(testing.bench_kineto(lambda: None, "kernel", 3), float)
    assert len(testing.bench_kineto(lambda: None, ("a", "b"), 3)) == 2


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0])
def test_unbalanced_scores(ratio):
    torch.manual_seed(0)
    scores = gate.get_unbalanced_scores(2000, 64, 8, 8, ratio, precise=True)
    owner = scores.topk(8, dim=1).indices // 8
    per_rank = torch.bincount(owner.flatten(), minlength=8)
    assert abs(int(per_rank[0]) / (2000 * 8 / 8) - ratio) < 0.1 * ratio
    assert gate.get_inequality(per_rank) >= 0.9 * ratio


def test_link_speeds_are_numbers():
    assert envs.get_nvlink_gbs(1.0) >= 0 and envs.get_rdma_gbs() >= 0 and math.isfinite(envs.get_nvlink_gbs())


def refs_body(rank):
    everyone = oracle.batches((5, 0, 3, 4)[: rank.size])
    batch, wanted = everyone[rank.rank], oracle.arrivals(everyone, rank.rank, 12)
    x, ids, weights, sources = refs.dispatch(batch.x, batch.ids, batch.weights, 12, rank.group)
    same(x, wanted.x, "rows")
    same(ids, wanted.ids, "ids")
    same(weights, wanted.weights, "weights")
    combined = refs.combine(x, sources, len(batch.x), rank.group)
    same(combined, batch.x * oracle.ranks_reached(batch, rank.size, 12).to(batch.x.dtype), "combined")


def test_references(world):
    world.run(refs_body)
