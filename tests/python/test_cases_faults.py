"""Robustness cases about peers that come late or not at all, and about arguments that are wrong."""

import os
import signal
import threading
import time
from contextlib import suppress

import heddle
import numpy as np
import pytest
import ranks

TIMEOUT = 3.0  # seconds
X = np.ones((2, 8), np.float32)
IDS = np.array([[0, 1], [1, 0]])


def dispatch(buffer, x=X, ids=IDS, **options):
    return buffer.dispatch(buffer.plan(ids), x, **options)


def test_case_08_a_peer_that_is_only_slow():
    def body(bootstrap):
        with heddle.Buffer(bootstrap, experts=2, timeout=20 * TIMEOUT) as buffer:
            time.sleep(0.5 * bootstrap.rank)
            rows = dispatch(buffer).num_rows
            bootstrap.barrier()
            return rows

    assert ranks.on_threads(2, body) == [4, 4]


def test_case_08_a_peer_that_comes_too_late():
    """Everybody hears of it, with operation, peer, what was awaited and seconds; reset() repairs."""
    gone = threading.Event()

    def body(bootstrap):
        with heddle.Buffer(bootstrap, experts=2, timeout=TIMEOUT) as buffer:
            if bootstrap.rank == 1:
                gone.wait(ranks.PATIENCE)
                with suppress(heddle.Error):  # all that it waits for may have come before the other left
                    dispatch(buffer)
            else:
                began = time.monotonic()
                with pytest.raises(heddle.TimeoutError_, match="dispatch.*rank 1.*3 s.*counter"):
                    dispatch(buffer)
                assert time.monotonic() - began < 10 * TIMEOUT
                with pytest.raises(TimeoutError):
                    raise heddle.TimeoutError_("also the builtin")
                gone.set()
            bootstrap.barrier()
            buffer.reset()
            assert dispatch(buffer).num_rows == 4
            bootstrap.barrier()

    ranks.all_well(ranks.on_threads(2, body))


def test_case_08_a_late_peer_is_masked_if_so_wished():
    """The call completes without it; its part is zero; nobody can take the result for a complete one."""
    done = threading.Event()

    def body(bootstrap):
        with heddle.Buffer(bootstrap, experts=3, timeout=1.0, mask_late_peers=True) as buffer:
            if bootstrap.rank == 2:
                done.wait(ranks.PATIENCE)
                return
            received = dispatch(buffer, ids=np.array([[0, 2], [1, 2]]))
            assert received.masked == [2] == buffer.masked()
            combined = buffer.combine(received.handle, received.x)
            assert combined.masked == [2] and combined.x[:, 0].tolist() == [1, 1]
            done.set()

    ranks.all_well(ranks.on_threads(3, body))


def test_case_08_masking_by_hand():
    def body(buffer):
        if buffer.rank != 2:
            buffer.mask(2)
            received = dispatch(buffer, ids=np.array([[0, 2], [1, 2]]))
            assert received.masked == [2]
        else:
            for peer in (0, 1):
                buffer.mask(peer)
        with pytest.raises(heddle.UsageError, match="mask: rank = 7, legal: 0 to 2"):
            buffer.mask(7)

    ranks.buffers(3, body, experts=3)


def loop_until_killed(bootstrap, timeout):
    buffer = heddle.Buffer(bootstrap, experts=3, timeout=timeout)
    for step in range(10**6):
        if bootstrap.rank == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            received = dispatch(buffer, ids=np.array([[0, 1], [1, 2]]))
            buffer.combine(received.handle, received.x)
        except heddle.Error as error:
            began = time.monotonic()
            buffer.reset([0, 2])
            again = dispatch(buffer, ids=np.array([[0, 2], [2, 0]]))
            return type(error).__name__, str(error), again.num_rows, time.monotonic() - began


def test_case_08_a_peer_that_is_killed():
    """The survivors raise and agree who it was, and go on without it."""
    started = ranks.start_processes(3, loop_until_killed, TIMEOUT)
    results = [ranks.result_of(*started[rank]) for rank in (0, 2)]
    started[1][0].join(ranks.PATIENCE)
    assert started[1][0].exitcode == -signal.SIGKILL
    for name, message, rows, _ in results:
        assert name == "TimeoutError_" and "rank 1" in message and rows == 4


GOOD = {"x": X, "weights": np.ones((2, 2), np.float32)}
BAD = {
    "float64 x": ({"x": X.astype(np.float64)}, "x is float64"),
    "complex x": ({"x": X.astype(np.complex64)}, "x is complex64"),
    "x of one dimension": ({"x": X[0]}, r"legal: \[tokens, hidden\]"),
    "x of three dimensions": ({"x": X[None]}, r"legal: \[tokens, hidden\]"),
    "x with other rows": ({"x": X[:1]}, "x has 1 rows, the plan 2"),
    "x that is a list": ({"x": X.tolist()}, "x is a list"),
    "x that is None": ({"x": None}, "x"),
    "float64 weights": ({"weights": np.ones((2, 2))}, "weights is float64"),
    "weights of other shape": ({"weights": np.ones((2, 3), np.float32)}, r"weights is .*legal: \[2, 2\]"),
    "scales of 2 bytes": ({"scales": np.ones((2, 1), np.float16)}, "scales is float16.*4-byte"),
    "unknown layout": ({"layout": "diagonal"}, "layout is 'diagonal', legal: 'token_major'"),
    "unknown quantise": ({"quantise": "int3"}, "quantise is 'int3'"),
    "unknown dtype": ({"dtype": "float7"}, "dtype 'float7'"),
    "dtype of another size": ({"dtype": "bfloat16"}, "elements of 4 bytes.*bfloat16 has 2"),
    "alignment 0": ({"alignment": 0}, "alignment = 0, legal: 1 or more"),
    "quantised float32": ({"quantise": "fp8"}, "legal with quantise: bfloat16"),
    "a stream on the CPU": ({"stream": 7}, "stream is 7"),
}


ON_CPU = pytest.mark.cpu_only("a GPU has streams")


@pytest.mark.parametrize("what", [pytest.param(what, marks=ON_CPU if "stream" in what else ()) for what in BAD])
def test_case_18_wrong_arguments_of_a_dispatch(what):
    """A clear error here, a refusal there, and the next call works on all ranks."""
    change, message = BAD[what]

    def body(buffer):
        plan = buffer.plan(IDS)
        if buffer.rank == 0:
            with pytest.raises(heddle.UsageError, match=message):
                buffer.dispatch(plan, **{**GOOD, **change})
        else:
            with pytest.raises(heddle.RefusedError, match="rank 0 refused its arguments"):
                buffer.dispatch(plan, **GOOD)
        assert buffer.dispatch(plan, **GOOD).num_rows == 4

    ranks.buffers(2, body, experts=2)


BAD_COMBINE = {
    "other rows": (lambda y: {"x": y[:1]}, "x has 1 rows, the dispatch put out 4"),
    "int32 x": (lambda y: {"x": y.astype(np.int32)}, "x is int32, legal: bfloat16, float16, float32"),
    "bias of another shape": (lambda y: {"x": y, "bias": X[:1]}, "bias"),
    "three biases": (lambda y: {"x": y, "bias": (X, X, X)}, "bias has 3 tensors, legal: 1 or 2"),
    "row weights of another shape": (lambda y: {"x": y, "row_weights": np.ones(3, np.float32)}, "row_weights is"),
    "weighted token-major": (lambda y: {"x": y, "weighted": True}, "weighted needs"),
    "out of another type": (lambda y: {"x": y, "out": np.empty((2, 8), np.float16)}, "out is"),
}


@pytest.mark.parametrize("what", BAD_COMBINE)
def test_case_18_wrong_arguments_of_a_combine(what):
    change, message = BAD_COMBINE[what]

    def body(buffer):
        received = dispatch(buffer)
        if buffer.rank == 0:
            with pytest.raises(heddle.UsageError, match=message):
                buffer.combine(received.handle, **change(received.x))
        else:
            with pytest.raises(heddle.RefusedError):
                buffer.combine(received.handle, received.x)
        assert (buffer.combine(received.handle, received.x).x == 2).all()

    ranks.buffers(2, body, experts=2)


def test_case_18_routes_of_elsewhere():
    with (
        heddle.Buffer(heddle.in_process(1)[0], experts=2) as one,
        heddle.Buffer(heddle.in_process(1)[0], experts=2) as other,
    ):
        plan = one.plan(IDS)
        received = one.dispatch(plan, X)
        for call in (
            lambda: other.dispatch(plan, X),
            lambda: other.combine(received.handle, received.x),
            lambda: one.dispatch("plan", X),
            lambda: one.combine(plan, received.x),
            lambda: one.dispatch_send(received.handle, X),
        ):
            with pytest.raises(heddle.UsageError, match="another buffer|legal"):
                call()
        one.reset()
        with pytest.raises(heddle.UsageError, match="does not survive reset"):
            one.combine(received.handle, received.x)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_case_18_ids_of_both_widths_and_any_strides(dtype):
    with heddle.Buffer(heddle.in_process(1)[0], experts=4) as buffer:
        ids = np.arange(12, dtype=dtype).reshape(3, 4) % 4
        for view in (ids, ids.T, ids[:, ::2], ids[::-1], np.broadcast_to(ids[0], (5, 4)), np.asfortranarray(ids)):
            assert np.array_equal(buffer.plan(view).ids, view)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([[0, 2]]), r"ids\[0\]\[1\] = 2, legal: 0 to 1, or -1"),
        (np.array([[0], [-2]]), r"ids\[1\]\[0\] = -2"),
        (np.array([[0.0]]), "ids is float64"),
        (np.array([[0]], np.int16), "ids is int16"),
        (np.array([0, 1]), r"\[tokens, topk\]"),
        (np.array([[2**40]]), "legal: 0 to 1"),
    ],
)
def test_case_18_wrong_ids_are_named(ids, message):
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        with pytest.raises(heddle.UsageError, match=message):
            buffer.plan(ids)


def test_case_18_unaligned_and_repeated_rows():
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        raw = np.zeros(2 + 2 * 16 * 2, np.uint8)
        unaligned = raw[2:].view(np.float16).reshape(2, 16)
        unaligned[:] = np.arange(32).reshape(2, 16)
        for x in (unaligned, np.broadcast_to(unaligned[0], (2, 16)), unaligned[:, ::-1]):
            received = buffer.dispatch(buffer.plan(IDS), x)
            assert np.array_equal(received.x, x)
            assert np.array_equal(buffer.combine(received.handle, received.x).x, x)
