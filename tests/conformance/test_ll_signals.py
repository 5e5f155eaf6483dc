"""Combines that wait for a GEMM's signals (branches antgroup-opt and hybrid-ep)."""

import threading
import time

import pytest
import torch
from slabs import EXPERTS, MOST, back, close, everyone, make
from test_v1_errors import raises

pytestmark = pytest.mark.ll


class Gemm:
    """Writes rows late, then says so: on a CPU in a thread, on a GPU in a stream of its own."""

    def __init__(self, y, rows, words, value):
        self._work = (y, rows, words, value)
        if y.is_cuda:
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(100_000_000)  # some 50 ms
                self._write()
            return
        self._thread = threading.Thread(target=lambda: (time.sleep(0.2), self._write()))
        self._thread.start()

    def _write(self):
        y, rows, words, value = self._work
        y.copy_(rows)
        words.fill_(value)

    def join(self):
        if self._work[0].is_cuda:
            torch.cuda.synchronize()
        else:
            self._thread.join()


def signals_body(rank, kind):
    buffer = make(rank)
    batch = everyone(rank)[rank.rank]
    recv_x, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    experts, rows = handle[0].shape
    if kind == "blocks of rows":
        words, value = torch.zeros(experts * -(-rows // 64), dtype=torch.int32), 3
        words[experts * -(-rows // 128) :] = 0  # with block_m 128 only these have one
        settings = {"packed_recv_count": count, "comp_signal": words, "block_m": 128, "threshold": 3, "num_sms": 3}
    else:
        words, value = torch.zeros(experts, dtype=torch.int32), 5
        settings = {"src_signals": words.view(torch.uint32), "src_signal_expect_value": 5}
    for _ in range(2):
        words.zero_()
        y = torch.zeros_like(recv_x)
        gemm = Gemm(y, recv_x, words, value)
        combined, _, receive = buffer.low_latency_combine(
            y, batch.ids, batch.weights, handle, overlap=True, return_recv_hook=True, **settings
        )
        receive()
        gemm.join()
        close(combined, back(batch))


@pytest.mark.parametrize("kind", ["blocks of rows", "experts"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_combine_waits_for_signals(world, ranks, kind):
    world.run(signals_body, kind, ranks=min(ranks, world.size))


def empty_body(rank):
    """Blocks past the rows that came have no signal: nobody waits for them."""
    buffer = make(rank)
    batch = everyone(rank, sizes=(3, 2))[rank.rank]
    recv_x, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    experts, rows = handle[0].shape
    words = torch.zeros(experts * -(-rows // 64), dtype=torch.int32)
    words.view(experts, -1)[count > 0, 0] = 1
    combined, _, receive = buffer.low_latency_combine(
        recv_x,
        batch.ids,
        batch.weights,
        handle,
        overlap=True,
        return_recv_hook=True,
        packed_recv_count=count,
        comp_signal=words,
        threshold=1,
    )
    receive()
    close(combined, back(batch))


def test_empty_blocks_have_no_signal(world):
    world.run(empty_body, ranks=min(2, world.size))


def wrong_body(rank):
    buffer = make(rank)
    batch = everyone(rank)[rank.rank]
    y, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    experts, rows = handle[0].shape
    words = torch.zeros(experts * -(-rows // 64), dtype=torch.int32)
    common = (y, batch.ids, batch.weights, handle)
    good = {"overlap": True, "comp_signal": words, "packed_recv_count": count, "threshold": 1, "return_recv_hook": True}
    for change, says in (
        ({"return_recv_hook": False}, "return_recv_hook"),
        ({"comp_signal": words[1:]}, "comp_signal is int32"),
        ({"packed_recv_count": None}, "packed_recv_count"),
        ({"threshold": 0}, "threshold = 0|threshold is 0"),
        ({"comp_signal": None, "src_signals": words}, "src_signals is not uint32"),
    ):
        raises(lambda: buffer.low_latency_combine(*common, **{**good, **change}), says)  # noqa: B023
    close(buffer.low_latency_combine(*common)[0], back(batch))


def test_wrong_signals_are_named(world):
    world.run(wrong_body, ranks=1)
