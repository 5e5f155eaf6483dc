"""Calls that are split into send and receive: hooks in any order, dropped, in other threads."""

import threading

import pytest
from slabs import EXPERTS, MOST, back, check_slab, close, everyone, make

pytestmark = pytest.mark.ll


def overlap_body(rank):
    """Two micro-batches in flight, their halves in any order: A and B dispatched, A combined, B combined."""
    buffer = make(rank)
    a_all, b_all = everyone(rank, seed=1), everyone(rank, (3, 0, 12, 7), seed=2)
    a, b = a_all[rank.rank], b_all[rank.rank]
    for _ in range(3):
        ax, a_count, a_handle, _, a_hook = buffer.low_latency_dispatch(
            a.x, a.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        bx, b_count, b_handle, _, b_hook = buffer.low_latency_dispatch(
            b.x, b.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        a_hook()
        check_slab(rank, a_all, ax, a_count, a_handle)
        b_hook()
        check_slab(rank, b_all, bx, b_count, b_handle)
        a_out, _, a_hook = buffer.low_latency_combine(ax, a.ids, a.weights, a_handle, return_recv_hook=True)
        b_out, _, b_hook = buffer.low_latency_combine(bx, b.ids, b.weights, b_handle, return_recv_hook=True)
        b_hook()
        a_hook()
        close(a_out, back(a))
        close(b_out, back(b))


def test_two_hooks_in_flight(world):
    world.run(overlap_body)


def dropped_body(rank):
    """A hook that is never called must not stop the calls after it."""
    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    for _ in range(5):
        buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, return_recv_hook=True)
    recv_x, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    check_slab(rank, every, recv_x, count, handle)


def test_a_hook_may_be_dropped(world):
    world.run(dropped_body)


def threads_body(rank):

    buffer = make(rank)
    every = everyone(rank)
    batch = every[rank.rank]
    recv_x, count, handle, _, hook = buffer.low_latency_dispatch(
        batch.x, batch.ids, MOST, EXPERTS, use_fp8=False, return_recv_hook=True
    )
    thread = threading.Thread(target=hook)
    thread.start()
    thread.join(60)
    check_slab(rank, every, recv_x, count, handle)


def test_a_hook_may_be_called_by_another_thread(world):
    world.run(threads_body)
