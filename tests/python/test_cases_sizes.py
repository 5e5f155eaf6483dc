"""Robustness cases about sizes: more tokens than declared, padding, hidden sizes, top-k and experts, large numbers."""

import heddle
import numpy as np
import pytest
import ranks
from reference import make_batch, num_ranks_reached

HIDDEN = 16


def one(buffer, tokens: int, **options):
    """A dispatch of `tokens` tokens of which each goes to every rank."""
    ids = np.tile(np.arange(buffer.size), (tokens, 1))
    return buffer.dispatch(buffer.plan(ids), np.ones((tokens, HIDDEN), np.float32), **options)


def test_case_03_more_tokens_than_declared():
    """Refused everywhere with T, the limit and the knob; the next call works."""

    def body(buffer):
        with pytest.raises(heddle.UsageError, match="9 tokens.*max_tokens = 8.*raise max_tokens"):
            one(buffer, 9)
        error = heddle.UsageError if buffer.rank == 0 else heddle.RefusedError
        with pytest.raises(error, match="9") as caught:
            one(buffer, 9 if buffer.rank == 0 else 2)
        assert buffer.rank == 0 or "rank 0" in str(caught.value)
        return one(buffer, 8).num_rows

    assert ranks.buffers(2, body, experts=2, max_tokens=8) == [16, 16]


def test_case_03_no_limit_declared():
    """max = 0: exact calls work, what needs a limit says so."""

    def body(buffer):
        with pytest.raises(heddle.UsageError, match="need max_tokens"):
            one(buffer, 3, layout="slab")
        return one(buffer, 3).num_rows

    assert ranks.buffers(2, body, experts=2) == [6, 6]


def test_case_03_capacity_drops_or_raises():
    def body(buffer):
        with pytest.raises(heddle.OverflowError_, match="capacity"):
            one(buffer, 4, fixed_size=True, capacity=5)
        received = one(buffer, 4, fixed_size=True, capacity=5, drop_overflow=True)
        assert (received.x.shape[0], received.num_dropped) == (5, 3)
        combined = buffer.combine(received.handle, received.x)
        assert combined.x[:, 0].tolist() == ([2, 2, 2, 2] if buffer.rank == 0 else [2, 0, 0, 0])

    ranks.buffers(2, body, experts=2, max_tokens=8)


@pytest.mark.parametrize("layout", ["token_major", "expert_major"])
def test_case_05_padding_of_fixed_size_outputs(layout):
    """Many tokens, then few, in memory full of NaN: padding says -1 and 0, and is never read."""

    def poisoned(dtype, shape):
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = 0x7F if array.dtype.kind != "f" else 0xFF
        return array

    def body(buffer):
        buffer.set_allocator(poisoned)
        for tokens in (8, 1, 0, 3):
            batch = make_batch(tokens + buffer.rank, tokens, HIDDEN, 2, 4, absent=0)
            plan = buffer.plan(batch.ids)
            received = buffer.dispatch(plan, batch.x, weights=batch.weights, layout=layout, fixed_size=True)
            padding = received.row_source < 0
            assert (~padding).sum() == (received.num_rows if layout == "token_major" else received.num_per_expert.sum())
            assert (received.weights[padding] == 0).all() and (received.row_token[padding] == -1).all()
            if layout == "token_major":
                assert (received.ids[padding] == -1).all()
            y = received.x.copy()
            clean = buffer.combine(received.handle, y).x
            for poison in (np.nan, np.inf):
                y[padding] = poison
                assert np.array_equal(buffer.combine(received.handle, y).x, clean)
            assert np.isfinite(clean).all()

    ranks.buffers(2, body, experts=4, max_tokens=8)


def test_case_10_hidden_sizes():
    """Every H whose row is a multiple of 16 bytes; others name the rule."""
    sizes = [*range(8, 1025, 8), 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 7176, 8192, 16384]

    def body(buffer):
        for hidden in sizes:
            x = np.arange(3 * hidden, dtype=np.uint16).reshape(3, hidden) % 97 + 0x3F80
            received = buffer.dispatch(buffer.plan(np.array([[0], [1], [0]])), x, dtype="bfloat16")
            combined = buffer.combine(received.handle, received.x, dtype="bfloat16")
            assert np.array_equal(combined.x, x), hidden
        for hidden in (1, 4, 12, 100):
            with pytest.raises(heddle.UsageError, match="multiple of 16 bytes"):
                buffer.dispatch(
                    buffer.plan([[0]] * np.ones((3, 1), int)), np.zeros((3, hidden), np.float16)[:, :hidden]
                )

    ranks.buffers(2, body, experts=2)


@pytest.mark.parametrize("hidden", [128, 200, 336, 2880])
def test_case_10_scales_of_a_short_last_block(hidden):
    """ceil(H / 128) scales; the short block uses its own values only."""
    with heddle.Buffer(heddle.in_process(1)[0], experts=1) as buffer:
        rng = np.random.default_rng(hidden)
        x = (rng.standard_normal((4, hidden), np.float32).view(np.uint32) >> 16).astype(np.uint16)
        received = buffer.dispatch(buffer.plan(np.zeros((4, 1), int)), x, dtype="bfloat16", quantise="fp8")
        assert received.scales.shape == (4, -(-hidden // 128))
        values = (x.astype(np.uint32) << 16).view(np.float32)
        for block in range(received.scales.shape[1]):
            largest = np.abs(values[:, 128 * block : 128 * (block + 1)]).max(axis=1)
            assert np.allclose(received.scales[:, block], np.maximum(largest, 1e-4) / 448)


@pytest.mark.parametrize("topk", [1, 2, 6, 8, 9, 11, 12, 16, 17, 32, 33, 64])
def test_case_11_top_k(topk):
    """Any K, also above the experts of a rank, and K = E."""

    def body(buffer):
        batch = make_batch(buffer.rank, 10, HIDDEN, topk, 64)
        batch.ids[0] = np.arange(64)[:topk]
        received = buffer.dispatch(buffer.plan(batch.ids), batch.x)
        combined = buffer.combine(received.handle, received.x)
        assert np.array_equal(combined.x, batch.x * num_ranks_reached(batch, 3, 64)[:, None])

    ranks.buffers(3, body, experts=64)


@pytest.mark.parametrize("experts", [3, 6, 96, 256, 384, 448, 896, 1024, 2048, 7, 100, 1, 2])
def test_case_11_expert_counts(experts):
    """Uneven splits too, and fewer experts than ranks."""

    def body(buffer):
        batch = make_batch(buffer.rank, 10, HIDDEN, 4, experts)
        received = buffer.dispatch(buffer.plan(batch.ids), batch.x, layout="expert_major")
        assert len(received.num_per_expert) == len(buffer.local_experts)
        combined = buffer.combine(received.handle, received.x)
        hits = [len(set(row[row >= 0])) for row in batch.ids]
        assert np.array_equal(combined.x, batch.x * np.array(hits)[:, None])
        return list(buffer.local_experts)

    assert sum(ranks.buffers(3, body, experts=experts), []) == list(range(experts))


def test_case_11_limits_are_said():
    with heddle.Buffer(heddle.in_process(1)[0], experts=4) as buffer:
        with pytest.raises(heddle.UsageError, match="topk.*legal: 1 to"):
            buffer.plan(np.zeros((1, 10**4), np.int32))
        with pytest.raises(heddle.UsageError, match="topk.*legal: 1 to"):
            buffer.plan(np.zeros((1, 0), np.int32))
    with pytest.raises(heddle.UsageError, match="experts = 0, legal: 1 to 16777216"):
        heddle.Buffer(heddle.in_process(1)[0], experts=0)


def test_case_20_large_numbers_are_refused_before_memory_is_taken():
    """Sizes are counted in 64 bits; what cannot be had is said with the needed and the legal value."""
    with heddle.Buffer(heddle.in_process(1)[0], experts=1, max_tokens=2**31 - 1) as buffer:
        plan = buffer.plan(np.zeros((1, 1), np.int64))
        x = np.zeros((1, HIDDEN), np.float32)
        with pytest.raises(heddle.Error, match="memory|bytes|rows|window_bytes"):
            buffer.dispatch(plan, x, fixed_size=True)
        with pytest.raises(heddle.UsageError, match="max_tokens.*legal"):
            buffer.dispatch(plan, x, max_tokens=2**40)
        with pytest.raises(heddle.UsageError, match="capacity.*legal"):
            buffer.dispatch(plan, x, capacity=-2, fixed_size=True)
        assert buffer.dispatch(plan, x).num_rows == 1
    with pytest.raises(heddle.UsageError, match="window_bytes.*legal"):
        heddle.Buffer(heddle.in_process(1)[0], experts=1, window_bytes=1)


@pytest.mark.cpu_only("the doctor's self-test is of the CPU")
def test_case_20_predicted_bytes_are_what_a_buffer_takes():
    from heddle.doctor.self_test import run

    lines, places = run(2)
    assert [line.state for line in lines] == ["ok", "ok"], lines
    assert len(places) == 2
    with heddle.Buffer(heddle.in_process(1)[0], experts=448, max_tokens=2048, window_bytes=1 << 33) as buffer:
        assert 1 << 33 <= buffer.predicted_bytes <= 1.03 * (1 << 33)  # memory is touched only as it is used
