"""Rows in place: results in memory that other ranks write to. Everything else stays as it is without a heap."""

import time

import heddle
import numpy as np
import pytest
import ranks

TOKENS, HIDDEN, EXPERTS = 40, 64, 6


def batch(rank, round):
    x = np.full((TOKENS, HIDDEN), 10 * rank + 100 * round, np.float32) + np.arange(TOKENS, dtype=np.float32)[:, None]
    ids = (np.arange(TOKENS)[:, None] + [rank + round, rank + 2 * round + 3]) % EXPERTS
    return x, ids


def rounds(buffer, layout):
    """Results of some calls, all of them held."""
    held = []
    for round in range(6):
        x, ids = batch(buffer.rank, round)
        received = buffer.dispatch(buffer.plan(ids), x, layout=layout, zero_padding=True)
        combined = buffer.combine(received.handle, received.x)
        held.append((received.x, received.row_source, received.row_token, combined.x))
    return held, buffer.metrics().dispatch.rows_in_place


def of_process(bootstrap, layout, heap_bytes):
    with heddle.Buffer(bootstrap, experts=EXPERTS, timeout=ranks.PATIENCE, heap_bytes=heap_bytes) as buffer:
        for round in range(20):  # the first calls are staged, while others map the heap
            x, ids = batch(buffer.rank, round)
            buffer.dispatch(buffer.plan(ids), x, layout=layout)
            time.sleep(0.005)
        held, in_place = rounds(buffer, layout)
        copies = [[np.array(one) for one in tensors] for tensors in held]
        bootstrap.barrier("all have looked")
    return copies, in_place


@pytest.mark.parametrize("layout", ["token_major", "expert_major"])
def test_results_are_the_same_with_a_heap(layout):
    def body(buffer):
        return rounds(buffer, layout)

    staged = ranks.buffers(3, body, experts=EXPERTS)
    in_place = ranks.buffers(3, body, experts=EXPERTS, heap_bytes=1 << 24)
    for (wanted, no_rows), (seen, rows) in zip(staged, in_place, strict=True):
        assert no_rows == 0 and rows > 0
        for a, b in zip(wanted, seen, strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_processes_write_into_one_anothers_results():
    staged = ranks.on_processes(2, of_process, "token_major", 0)
    in_place = ranks.on_processes(2, of_process, "token_major", 1 << 24)
    assert any(rows > 0 for _, rows in in_place)
    for (wanted, _), (seen, _) in zip(staged, in_place, strict=True):
        for a, b in zip(wanted, seen, strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_wrong_sizes_are_named():
    with pytest.raises(heddle.UsageError, match="heap_bytes = -1, legal: 0"):
        heddle.Buffer(heddle.in_process(1)[0], experts=1, heap_bytes=-1)


no_gpu = heddle._core.cuda_problem()


@pytest.mark.skipif(bool(no_gpu), reason=no_gpu)
@pytest.mark.parametrize("layout", ["token_major", "expert_major"])
def test_on_gpus_results_are_torchs_tensors_in_the_heap(layout):
    torch = pytest.importorskip("torch")
    gpus = pytest.importorskip("gpus")

    def body(buffer, meet):
        held = []
        for round in range(8):
            x, ids = (torch.from_numpy(array).cuda() for array in batch(buffer.rank, round))
            x = x.repeat(1, 32)  # 8 KB a row: large results lie in the heap
            received = buffer.dispatch(buffer.plan(ids), x, layout=layout, zero_padding=True)
            combined = buffer.combine(received.handle, received.x)
            held = [*held[-3:], (round, received, combined)]
            meet()
        rows = buffer.metrics().dispatch.rows_in_place
        last = [(round, gpus.host(got.x), gpus.host(out.x), got.row_source.cpu()) for round, got, out in held]
        return last, rows

    for rank, (held, rows) in enumerate(gpus.on_gpus(2, body, experts=EXPERTS, heap_bytes=1 << 30)):
        assert rows > 0
        for round, x, out, sources in held:
            sent, ids = batch(rank, round)
            hits = np.array([[len({e * 2 // EXPERTS for e in token})] for token in ids.tolist()], np.float32)
            if layout == "expert_major":
                hits = np.array([[len(set(token))] for token in ids.tolist()], np.float32)
            assert np.array_equal(out[:, :HIDDEN].numpy(), sent * hits)
            assert x.shape[0] == sources.shape[0]
