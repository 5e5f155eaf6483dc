"""A handle made again from copies of its tensors: for programs that keep tensors and nothing else."""

import heddle
import numpy as np
import pytest
import ranks
import reference

HIDDEN, EXPERTS, TOPK = 16, 6, 3
NAMES = ("recv_offset", "recv_token", "source_tokens", "recv_ids")


def tensors_of(handle):
    kept = {name: getattr(handle, name).copy() for name in NAMES}
    assert all(np.array_equal(one, other) for one, other in zip(kept.values(), handle.tensors(), strict=True))
    return kept


@pytest.mark.parametrize("sizes", [(5, 7, 3), (0, 9, 4), (0, 0, 0)])
@pytest.mark.parametrize("routed_by", ["ids", "rank map"])
def test_it_combines_and_dispatches_as_the_first(sizes, routed_by):
    def body(buffer):
        batch = reference.make_batch(buffer.rank, sizes[buffer.rank], HIDDEN, TOPK, EXPERTS)
        plan = buffer.plan(batch.ids)
        if routed_by == "rank map":
            plan = buffer.plan_from_rank_map(plan.is_token_in_rank)
        received = buffer.dispatch(plan, batch.x)
        y = received.x * 3
        rows = None if routed_by == "rank map" else received.weights
        wanted = buffer.combine(received.handle, y, row_weights=rows)
        kept = tensors_of(received.handle)
        if routed_by == "rank map":
            kept["recv_ids"] = None
        del received
        other = reference.make_batch(9, 4, HIDDEN, TOPK, EXPERTS)  # the buffer serves others meanwhile
        buffer.dispatch(buffer.plan(other.ids), other.x)
        again = buffer.handle(plan, **kept)
        combined = buffer.combine(again, y, row_weights=rows)
        assert np.array_equal(combined.x, wanted.x)
        assert rows is None or np.array_equal(combined.weights, wanted.weights)
        assert np.array_equal(buffer.dispatch(again, batch.x * 2).x * 3, y * 2)

    ranks.buffers(3, body, experts=EXPERTS)


def test_it_survives_a_reset_by_its_tensors():
    def body(buffer):
        batch = reference.make_batch(buffer.rank, 5, HIDDEN, TOPK, EXPERTS)
        received = buffer.dispatch(buffer.plan(batch.ids), batch.x)
        before = buffer.combine(received.handle, received.x).x
        buffer.reset()
        again = buffer.handle(buffer.plan(batch.ids), **tensors_of(received.handle))
        assert np.array_equal(buffer.combine(again, received.x).x, before)

    ranks.buffers(2, body, experts=EXPERTS)


@pytest.fixture
def alone():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        plan = buffer.plan(np.array([[0, 1], [1, -1], [-1, -1]]))
        yield buffer, plan, tensors_of(buffer.dispatch(plan, np.ones((3, 4), np.float32)).handle)


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("recv_offset", [0, 3], r"recv_token is int32 \[2\], legal: contiguous int32 \[3\]"),
        ("recv_offset", [1, 2], r"recv_offset\[0\] = 1, legal: 0"),
        ("recv_offset", [0, -1], r"recv_offset\[1\] = -1, legal: 0 or more"),
        ("recv_token", [1, 1], r"recv_token\[1\] = 1, legal from rank 0: 2 to 2"),
        ("recv_token", [0, 3], r"recv_token\[1\] = 3, legal from rank 0: 1 to 2"),
        ("source_tokens", [3, 3], r"source_tokens is int32 \[2\], legal: contiguous int32 \[1\]"),
        ("recv_ids", [[0, 2], [1, -1]], r"recv_ids has 2, legal: -1 to 1"),
        ("recv_ids", [[0], [1]], r"recv_ids is int32 \[2, 1\], legal: contiguous int32 \[2, 2\]"),
    ],
)
def test_tensors_that_no_dispatch_had_are_refused(alone, name, value, says):
    buffer, plan, tensors = alone
    with pytest.raises(heddle.UsageError, match=says):
        buffer.handle(plan, **{**tensors, name: np.array(value, np.int32)})
    with pytest.raises(heddle.UsageError, match=f"{name} is int64"):
        buffer.handle(plan, **{**tensors, name: tensors[name].astype(np.int64)})


def test_a_plan_of_another_buffer_is_refused(alone):
    _, plan, tensors = alone
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as other:
        with pytest.raises(heddle.UsageError, match="plan is not of this buffer"):
            other.handle(plan, **tensors)
