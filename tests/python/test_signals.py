"""Combines of rows that are still being made: a signal that does not come ends the wait, and is named."""

import heddle
import pytest
import ranks
from heddle.arguments import dispatch_options

torch = pytest.importorskip("torch")

MOST, OPTIONS = 4, dispatch_options(layout="slab", max_tokens=4)


def slab(buffer):
    ids = torch.tensor([[0], [1]])
    x = torch.full((2, 32), float(buffer.rank + 1))
    (rows, _, count, *_, handle), _ = buffer.dispatch_slab(ids, x, OPTIONS)
    return x, rows, count, handle


def test_a_signal_that_does_not_come():
    def body(buffer):
        x, rows, count, handle = slab(buffer)
        words = torch.full((1,), 0 if buffer.rank == 0 else 7, dtype=torch.int32)
        with pytest.raises(heddle.TimeoutError_) as raised:
            buffer.combine_rows(handle, rows, ready=(words, None, 0, 7))
        says = "combine on rank 0: its rows were not ready within 1 s (signal 0: wanted 7, seen 0)"
        assert (says in str(raised.value)) == (buffer.rank == 0), str(raised.value)
        assert "rank 0" in str(raised.value)
        with pytest.raises(heddle.FaultedError):
            slab(buffer)
        buffer.reset()
        x, rows, count, handle = slab(buffer)
        (sums, _), _ = buffer.combine_rows(handle, rows, ready=(words.fill_(7), None, 0, 7))
        assert torch.equal(sums, x)

    ranks.buffers(2, body, experts=2, timeout=1.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"words": torch.zeros(0, dtype=torch.int32)}, "ready.words"),
        ({"words": torch.zeros(2)}, "ready.words is float32"),
        ({"counts": torch.zeros(3, dtype=torch.int32), "rows_each": 2}, "ready.counts"),
        ({"rows_each": -1}, "ready.rows_each = -1"),
        ({"words": torch.zeros(1, dtype=torch.int32), "counts": torch.zeros(1, dtype=torch.int32), "rows_each": 2},
         "ready.words is int32 .*legal: 4"),
    ],
)  # fmt: skip
def test_wrong_signals_are_refused_on_all_ranks(change, says):
    def body(buffer):
        x, rows, count, handle = slab(buffer)
        good = {"words": torch.ones(4, dtype=torch.int32), "counts": None, "rows_each": 0, "wanted": 1}
        ready = tuple({**good, **(change if buffer.rank == 1 else {})}.values())
        error = heddle.UsageError if buffer.rank == 1 else heddle.RefusedError
        with pytest.raises(error, match=says if buffer.rank == 1 else "rank 1 refused.*ready"):
            buffer.combine_rows(handle, rows, ready=ready)
        (sums, _), _ = buffer.combine_rows(handle, rows)
        assert torch.equal(sums, x)

    ranks.buffers(2, body, experts=2)
