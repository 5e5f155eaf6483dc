"""Robustness cases about ranks and buffers: walks over shapes, groups, disagreement, life cycle."""

import gc
import os
import subprocess
import sys
import threading

import heddle
import numpy as np
import pytest
import ranks
from reference import make_batch, num_ranks_reached


def trip(buffer, seed, tokens, hidden=16, topk=2, experts=6, **options):
    batch = make_batch(seed + 100 * buffer.rank, tokens, hidden, topk, experts)
    received = buffer.dispatch(buffer.plan(batch.ids), batch.x, weights=batch.weights, **options)
    if options.get("layout", "token_major") != "token_major":
        times = np.where(batch.ids >= 0, batch.weights, 0).sum(axis=1)
        combined = buffer.combine(received.handle, received.x, weighted=True)
    else:
        times = num_ranks_reached(batch, buffer.size, experts)
        combined = buffer.combine(received.handle, received.x)
    assert np.array_equal(combined.x, batch.x * times[:, None])


def test_case_09_random_walk_over_shapes_and_modes():
    """No cleaning between calls, no dependence on what came before."""

    def body(buffer):
        rng = np.random.default_rng(9)  # the same on all ranks
        for step in range(120):
            most = int(rng.choice([4, 16, 24]))
            options = {"layout": str(rng.choice(["token_major", "expert_major", "slab"])), "max_tokens": most}
            if options["layout"] != "slab":
                options["fixed_size"] = bool(rng.integers(2))
            tokens = int(rng.integers(0, most + 1, buffer.size)[buffer.rank])
            trip(buffer, step, tokens, int(rng.choice([4, 64, 176])), int(rng.choice([1, 2, 8])), 12, **options)

    ranks.buffers(3, body, experts=12, max_tokens=24, window_bytes=1 << 21)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8])
def test_case_12_rank_counts(size):
    def body(buffer):
        trip(buffer, 1, 9)
        trip(buffer, 2, 9, layout="expert_major", alignment=8)

    ranks.buffers(size, body, experts=6)


def test_case_12_groups_of_some_ranks():
    """Disjoint, overlapping and reversed groups of the same threads, used in turn."""
    members = {"low": [0, 1], "high": [2, 3], "middle": [1, 2], "reversed": [3, 2, 1, 0], "strided": [0, 2]}
    groups = {name: heddle.in_process(len(which), ranks.PATIENCE) for name, which in members.items()}

    def body(world):
        mine = {}
        for name, which in members.items():
            if world.rank in which:
                bootstrap = groups[name][which.index(world.rank)]
                mine[name] = heddle.Buffer(bootstrap, experts=6, timeout=ranks.PATIENCE)
        world.barrier()  # where ranks share a GPU, one makes a buffer only while no other's kernel waits
        for step in range(3):
            for buffer in mine.values():
                trip(buffer, step, 5)
        world.barrier()
        for buffer in mine.values():
            buffer.destroy()

    ranks.all_well(ranks.on_threads(4, body))


def test_case_13_ragged_batches():
    def body(buffer):
        for layout in ("token_major", "expert_major", "slab"):
            trip(buffer, 3, (1, 37, 512, 0)[buffer.rank], layout=layout)

    ranks.buffers(4, body, experts=6, max_tokens=512)


@pytest.mark.parametrize(
    ("name", "values"),
    [("experts", (6, 8)), ("max_tokens", (16, 32)), ("window_bytes", (1 << 20, 1 << 21)), ("mask_late_peers", (0, 1))],
)
def test_case_13_settings_that_differ_are_noticed_at_birth(name, values):
    """On all ranks, naming the setting, both values and a rank."""

    def body(bootstrap):
        settings = {"experts": 6, name: values[bootstrap.rank == 2]}
        if name == "mask_late_peers":
            settings[name] = bool(settings[name])
        heddle.Buffer(bootstrap, timeout=ranks.PATIENCE, **settings)

    for error in ranks.on_threads(3, body):
        assert isinstance(error, heddle.MismatchError) and name in str(error) and "2" in str(error)


@pytest.mark.parametrize("what", ["hidden", "topk", "dtype", "layout", "operation"])
def test_case_13_calls_that_differ_are_noticed(what):
    """An error on all ranks, never a hang; reset() repairs."""

    def body(bootstrap):
        with heddle.Buffer(bootstrap, experts=6, max_tokens=8, timeout=ranks.PATIENCE) as buffer:
            odd = bootstrap.rank == 1
            ids = np.zeros((3, 3 if odd and what == "topk" else 2), np.int64)
            dtype = np.float16 if odd and what == "dtype" else np.float32
            x = np.zeros((3, 32 if odd and what == "hidden" else 16), dtype)
            plan = buffer.plan(ids)
            layout = "slab" if odd and what == "layout" else "token_major"
            with pytest.raises(heddle.MismatchError) as caught:
                received = buffer.dispatch(plan, x, layout=layout)
                # Only "operation" comes so far.
                assert what == "operation"
                if odd:
                    buffer.dispatch(plan, x)
                else:
                    buffer.combine(received.handle, received.x)
            with pytest.raises(heddle.FaultedError):
                buffer.dispatch(plan, x)
            buffer.reset()
            trip(buffer, 1, 4)
            bootstrap.barrier()
            return str(caught.value)

    messages = ranks.all_well(ranks.on_threads(2, body))
    assert all("rank" in message for message in messages)


def open_things():
    with open("/proc/self/maps") as maps:
        mapped = sum("memfd:heddle" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mapped


def test_case_14_a_hundred_lives_leave_nothing_behind():
    def live():
        with heddle.Buffer(heddle.in_process(1)[0], experts=6, window_bytes=1 << 20) as buffer:
            trip(buffer, 1, 4)

    live()
    gc.collect()
    before = open_things()
    for _ in range(100):
        live()
    gc.collect()
    assert open_things() == before


def live_in_processes(bootstrap):
    def live():
        with heddle.Buffer(bootstrap, experts=6, window_bytes=1 << 20, timeout=ranks.PATIENCE) as buffer:
            trip(buffer, 1, 4)
            bootstrap.barrier()

    live()
    gc.collect()
    before = open_things()
    for _ in range(20):
        live()
    many = [heddle.Buffer(bootstrap, experts=6, window_bytes=1 << 20, timeout=ranks.PATIENCE) for _ in range(64)]
    for buffer in many:
        trip(buffer, 2, 3)
    bootstrap.barrier()
    for buffer in many:
        buffer.destroy()
        buffer.destroy()
    del many, buffer
    gc.collect()
    return before, open_things()


def test_case_14_many_lives_and_64_buffers_at_once_between_processes():
    for before, after in ranks.on_processes(2, live_in_processes):
        assert before == after


def test_case_14_use_after_destroy():
    buffer = heddle.Buffer(heddle.in_process(1)[0], experts=6)
    plan = buffer.plan(np.zeros((1, 1), int))
    buffer.destroy()
    buffer.destroy()
    assert buffer.is_destroyed
    for call in (
        lambda: buffer.plan(np.zeros((1, 1), int)),
        lambda: buffer.dispatch(plan, np.zeros((1, 8), np.float32)),
        lambda: buffer.dispatch(plan, np.zeros((1, 8))),  # of a type that cannot be read
        buffer.reset,
    ):
        with pytest.raises(heddle.DestroyedError, match="destroyed"):
            call()


def test_case_14_a_peer_that_destroys_is_named():
    def body(bootstrap):
        buffer = heddle.Buffer(bootstrap, experts=6, timeout=ranks.PATIENCE)
        if bootstrap.rank == 1:
            buffer.destroy()
            return None
        with pytest.raises(heddle.DestroyedError, match="rank 1 has destroyed"):
            trip(buffer, 1, 4)
        buffer.destroy()

    ranks.all_well(ranks.on_threads(2, body))


@pytest.mark.cpu_only("a program of its own, on the CPU")
def test_case_14_an_exception_or_a_plain_exit_ends_at_once():
    program = """
import heddle, numpy as np
buffer = heddle.Buffer(heddle.in_process(1)[0], experts=6)
received = buffer.dispatch(buffer.plan(np.zeros((1, 1), int)), np.zeros((1, 8), np.float32))
{end}
"""
    for end, code in (("", 0), ("raise ValueError", 1), ("del buffer", 0)):
        done = subprocess.run(
            [sys.executable, "-c", program.format(end=end)], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == code and "heddle" not in done.stderr.replace("import heddle", ""), done.stderr


def test_threads_of_one_rank_take_turns():
    """Any thread may call, one at a time: calls of two threads do not mix."""
    with heddle.Buffer(heddle.in_process(1)[0], experts=6, timeout=ranks.PATIENCE) as buffer:
        failures = []

        def work(seed):
            try:
                for i in range(20):
                    trip(buffer, seed + i, 5)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
