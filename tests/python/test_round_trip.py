"""Dispatch and combine against the NumPy reference, bit for bit (whole numbers)."""

import heddle
import numpy as np
import pytest
import ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import arrivals, expert_rows, first_expert, make_batch, num_ranks_reached

worlds = st.fixed_dictionaries(
    {
        "size": st.integers(1, 5),
        "experts": st.integers(1, 12),
        "topk": st.integers(1, 5),
        "hidden": st.sampled_from([4, 8, 36]),
        "tokens": st.lists(st.integers(0, 9), min_size=5, max_size=5),
        "seed": st.integers(0, 999),
        "window_bytes": st.sampled_from([0, 1 << 17]),
    }
)
thorough = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def batches_of(world: dict) -> list:
    return [
        make_batch(world["seed"] + r, world["tokens"][r], world["hidden"], world["topk"], world["experts"])
        for r in range(world["size"])
    ]


@thorough
@given(worlds)
def test_token_major_delivers_each_token_once_a_rank_and_sums_what_comes_back(world):
    batches = batches_of(world)

    def body(buffer: heddle.Buffer) -> None:
        mine = batches[buffer.rank]
        plan = buffer.plan(mine.ids)
        received = buffer.dispatch(plan, mine.x, weights=mine.weights)
        expected = arrivals(batches, buffer.rank, world["experts"])
        assert list(zip(received.row_source, received.row_token, strict=True)) == expected
        first, last = (first_expert(buffer.rank + i, buffer.size, world["experts"]) for i in (0, 1))
        for row, (source, token) in enumerate(expected):
            theirs = batches[source]
            local = (theirs.ids[token] >= first) & (theirs.ids[token] < last)
            assert np.array_equal(received.x[row], theirs.x[token])
            assert np.array_equal(received.ids[row], np.where(local, theirs.ids[token] - first, -1))
            assert np.array_equal(received.weights[row], np.where(local, theirs.weights[token], 0))
        counts = np.bincount(received.ids[received.ids >= 0], minlength=last - first)
        assert np.array_equal(received.num_per_expert, counts)
        combined = buffer.combine(received.handle, received.x)
        times = num_ranks_reached(mine, buffer.size, world["experts"])
        assert np.array_equal(combined.x, mine.x * times[:, None])

    ranks.buffers(world["size"], body, experts=world["experts"], window_bytes=world["window_bytes"])


@thorough
@given(worlds, st.sampled_from([1, 4]))
def test_expert_major_groups_rows_by_expert_and_weighs_them(world, alignment):
    batches = batches_of(world)

    def body(buffer: heddle.Buffer) -> None:
        mine = batches[buffer.rank]
        plan = buffer.plan(mine.ids)
        received = buffer.dispatch(
            plan, mine.x, weights=mine.weights, layout="expert_major", alignment=alignment, zero_padding=True
        )
        y = np.zeros_like(received.x)
        for local, expert in enumerate(buffer.local_experts):
            begin = received.expert_offsets[local]
            assert begin % alignment == 0
            rows = expert_rows(batches, expert)
            assert received.num_per_expert[local] == len(rows)
            for row, (source, token, weight) in enumerate(rows, begin):
                assert np.array_equal(received.x[row], batches[source].x[token])
                assert received.weights[row] == weight
            y[begin : begin + len(rows)] = received.x[begin : begin + len(rows)] * (expert + 1)
        combined = buffer.combine(received.handle, y, weighted=True)
        scale = np.where(mine.ids >= 0, mine.weights * (mine.ids + 1), 0).sum(axis=1)
        assert np.array_equal(combined.x, mine.x * scale[:, None])

    ranks.buffers(world["size"], body, experts=world["experts"], window_bytes=world["window_bytes"])


@pytest.mark.parametrize("split", [False, True])
def test_slab_has_a_place_for_every_token_of_every_rank(split):
    batches = [make_batch(r, 6, 8, 2, 4) for r in range(2)]

    def body(buffer: heddle.Buffer) -> None:
        mine = batches[buffer.rank]
        plan = buffer.plan(mine.ids)
        if split:
            pending = buffer.dispatch_send(plan, mine.x, weights=mine.weights, layout="slab")
            received = pending.receive()
        else:
            received = buffer.dispatch(plan, mine.x, weights=mine.weights, layout="slab")
        assert received.x.shape == (2, 2 * 8, 8)
        for local, expert in enumerate(buffer.local_experts):
            rows = expert_rows(batches, expert)
            assert received.num_per_expert[local] == len(rows)
            for place, (source, token, _) in enumerate(rows):
                assert np.array_equal(received.x[local, place], batches[source].x[token])
        if split:
            combined = buffer.combine_send(received.handle, received.x, weights=mine.weights).receive()
        else:
            combined = buffer.combine(received.handle, received.x, weighted=True)
        scale = np.where(mine.ids >= 0, mine.weights, 0).sum(axis=1)
        assert np.array_equal(combined.x, mine.x * scale[:, None])

    ranks.buffers(2, body, experts=4, max_tokens=8)


def trip_between_processes(bootstrap: heddle.Bootstrap, tokens: int) -> int:
    batches = [make_batch(r, tokens, 64, 2, 6) for r in range(bootstrap.size)]
    with heddle.Buffer(bootstrap, experts=6, max_tokens=tokens, timeout=ranks.PATIENCE) as buffer:
        mine = batches[buffer.rank]
        received = buffer.dispatch(buffer.plan(mine.ids), mine.x)
        combined = buffer.combine(received.handle, received.x)
        times = num_ranks_reached(mine, buffer.size, 6)
        assert np.array_equal(combined.x, mine.x * times[:, None])
        bootstrap.barrier()
        return buffer.metrics().dispatch.bytes_sent


@pytest.mark.parametrize("split", [False, True])
def test_ids_in_place_of_a_plan_and_statistics(split):
    batches = [make_batch(r, 7, 16, 3, 6) for r in range(2)]

    def body(buffer: heddle.Buffer) -> None:
        mine = batches[buffer.rank]
        counts, waits = np.full(3, 10, np.int32), np.zeros(2, np.int64)
        options = {"layout": "expert_major", "fixed_size": True, "max_tokens": 7}
        wanted = buffer.dispatch(buffer.plan(mine.ids), mine.x, **options)
        for turn in (1, 2):
            call = {"counts_total": counts, "waits_total": waits, **options}
            if split:
                sent = buffer.dispatch_send(mine.ids, mine.x, **call)
                received = sent.receive()
            else:
                received = buffer.dispatch(mine.ids, mine.x, **call)
            assert np.array_equal(received.row_token, wanted.row_token)
            assert np.array_equal(received.handle.plan.ids, mine.ids)
            assert np.array_equal(counts, 10 + turn * received.num_per_expert)
        back = np.zeros(2, np.int64)
        buffer.combine(received.handle, received.x, waits_total=back)
        assert waits[1 - buffer.rank] > 0 and back[1 - buffer.rank] > 0
        with pytest.raises(heddle.UsageError, match="counts_total.*legal: contiguous int32"):
            buffer.dispatch(mine.ids, mine.x, counts_total=counts[:2], **options)

    ranks.buffers(2, body, experts=6)


def test_ranks_that_are_processes_share_memory():
    assert all(sent > 0 for sent in ranks.on_processes(3, trip_between_processes, 40))
