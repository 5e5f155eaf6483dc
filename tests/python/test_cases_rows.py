"""Robustness cases about which rows travel: ranks without tokens, absent ids, skew, duplicates."""

import numpy as np
import pytest
import ranks
from reference import Batch, make_batch

LAYOUTS = ("token_major", "expert_major", "slab")
HIDDEN = 16


def trip(buffer, batch: Batch, layout: str, scale=1.0):
    """(received, combined): weighted where the layout can, with experts that multiply by `scale`."""
    plan = buffer.plan(batch.ids)
    received = buffer.dispatch(plan, batch.x, weights=batch.weights, layout=layout)
    weighted = layout != "token_major"
    return received, buffer.combine(received.handle, received.x * np.float32(scale), weighted=weighted)


def wanted(batch: Batch, layout: str, size: int, experts: int) -> np.ndarray:
    """What comes back if experts do nothing."""
    here = batch.ids >= 0
    if layout != "token_major":
        return batch.x * np.where(here, batch.weights, 0).sum(axis=1, keepdims=True)
    owner = ((batch.ids + 1) * size - 1) // experts
    times = sum(((owner == rank) & here).any(axis=1) for rank in range(size))
    return batch.x * times[:, None]


def to_rank_1(tokens: int, seed: int) -> Batch:
    batch = make_batch(seed, tokens, HIDDEN, 2, 4, absent=0)
    return Batch(np.full_like(batch.ids, 3) - np.arange(2), batch.x, batch.weights)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_01_rank_with_no_tokens(layout):
    """T = 0 on one rank, on all, 0 received, and 0 -> 64 -> 0 on one buffer: all take the same steps."""
    steps = [(0, 64, 64), (0, 0, 0), "all to rank 1", (64, 0, 5), (0, 64, 64), (0, 0, 0)]

    def body(buffer):
        for seed, step in enumerate(steps):
            if isinstance(step, str):
                batch = to_rank_1(20, seed)
            else:
                batch = make_batch(10 * seed + buffer.rank, step[buffer.rank], HIDDEN, 2, 4)
            received, combined = trip(buffer, batch, layout)
            assert combined.x.shape == batch.x.shape and combined.x.dtype == np.float32
            assert np.array_equal(combined.x, wanted(batch, layout, 3, 4))
            again = buffer.dispatch(received.handle, batch.x, weights=batch.weights)
            assert np.array_equal(again.num_per_expert, received.num_per_expert)
            if isinstance(step, str) and buffer.rank == 0:
                assert received.num_per_expert.sum() == 0
                if layout != "slab":
                    assert received.x.shape == (0, HIDDEN)
        return buffer.metrics().dispatch.calls, buffer.metrics().combine.calls

    counts = ranks.buffers(3, body, experts=4, max_tokens=64)
    assert counts == [(2 * len(steps), len(steps))] * 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_04_absent_ids(layout):
    """-1 in any column, whole rows, whole ranks; NaN weights there are not used; such a row combines to the bias."""

    def body(buffer):
        batch = make_batch(buffer.rank, 12, HIDDEN, 3, 6, absent=0)
        batch.ids[0, 0] = batch.ids[1, 1] = batch.ids[2, 2] = -1
        batch.ids[3] = -1
        if buffer.rank == 2:
            batch.ids[:] = -1
        batch.weights[batch.ids < 0] = np.nan
        received, combined = trip(buffer, batch, layout)
        assert np.array_equal(combined.x, wanted(batch, layout, 3, 6))
        assert (combined.x[3] == 0).all()
        bias = np.full_like(batch.x, 9)
        biased = buffer.combine(received.handle, received.x, bias=bias, weighted=layout != "token_major")
        assert (biased.x[3] == 9).all()
        plan = received.handle.plan
        assert plan.num_tokens_per_expert.sum() == (batch.ids >= 0).sum()
        ids = received.handle.recv_ids
        assert ((ids >= -1) & (ids < 2)).all()

    ranks.buffers(3, body, experts=6, max_tokens=12)


def test_case_04_one_column_of_none():
    """K = 1 with -1."""

    def body(buffer):
        ids = np.array([[-1], [buffer.rank]])
        received = buffer.dispatch(buffer.plan(ids), np.ones((2, HIDDEN), np.float32))
        assert received.num_rows == 1
        assert buffer.combine(received.handle, received.x).x[:, 0].tolist() == [0, 1]

    ranks.buffers(2, body, experts=2)


SKEWS = {
    "one expert": lambda rank, rng: np.full((32, 2), 5) * [1, 0] + [0, -1],
    "one rank": lambda rank, rng: rng.integers(2, 4, (32, 2)),
    "two experts on two ranks": lambda rank, rng: np.tile([1, 6], (32, 1)),
    "identical": lambda rank, rng: np.tile([7, 0], (32, 1)),
}


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_06_extreme_skew_and_exact_counts(skew, layout):
    batches = []
    for rank in range(4):
        rng = np.random.default_rng(rank)
        x = rng.integers(0, 4, (32, HIDDEN)).astype(np.float32)
        batches.append(Batch(SKEWS[skew](rank, rng), x, np.ones((32, 2), np.float32)))
    counts = np.bincount(np.concatenate([b.ids[b.ids >= 0] for b in batches]), minlength=8)
    rows = np.array([sum((b.ids == e).any(axis=1).sum() for b in batches) for e in range(8)])

    def body(buffer):
        batch = batches[buffer.rank]
        received, combined = trip(buffer, batch, layout)
        mine = list(buffer.local_experts)
        expected = counts if layout == "token_major" else rows
        assert np.array_equal(received.num_per_expert, expected[mine])
        if layout == "token_major":
            assert np.array_equal(np.bincount(received.ids[received.ids >= 0], minlength=2), counts[mine])
        assert np.array_equal(combined.x, wanted(batch, layout, 4, 8))

    # A window of few rows a peer: skew needs rounds, not memory.
    ranks.buffers(4, body, experts=8, max_tokens=32, window_bytes=1 << 17)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_25_same_expert_twice_in_one_token(layout):
    """(a + b) * y3 + c * y7: one row for the pair, one send for the token, no weight lost."""
    ids = np.array([[3, 3, 7, -1], [2, 2, 2, 2]])
    weights = np.array([[1, 2, 4, 0], [1, 1, 1, 1]], np.float32)
    x = np.full((2, HIDDEN), 3, np.float32)

    def body(buffer):
        received = buffer.dispatch(buffer.plan(ids), x, weights=weights, layout=layout)
        if layout == "token_major":
            assert received.num_rows == (2 * 2 if buffer.rank == 0 else 2)
            assert received.num_per_expert.sum() == (2 * (2 + 4) if buffer.rank == 0 else 2)
            y = received.x * np.where(received.ids >= 0, received.weights * (received.ids + 1), 0).sum(1, keepdims=True)
            combined = buffer.combine(received.handle, y.astype(np.float32))
        else:
            assert received.num_per_expert.tolist() == ([0, 0, 2, 2] if buffer.rank == 0 else [0, 0, 0, 2])
            y = received.x.copy()
            offsets = received.expert_offsets
            for local, count in enumerate(received.num_per_expert):
                rows = y[local, :count] if layout == "slab" else y[offsets[local] : offsets[local] + count]
                rows *= local + 1
            combined = buffer.combine(received.handle, y, weighted=True)
        assert combined.x[:, 0].tolist() == [3 * (3 * 4 + 4 * 4), 3 * 4 * 3]
        assert buffer.metrics().dispatch.rows_sent == 3

    ranks.buffers(2, body, experts=8, max_tokens=2)
