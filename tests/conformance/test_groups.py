"""Any ranks may form a group: parts of the world in any order, several at once, MPI's."""

import deep_ep
import oracle
import pytest
import torch
import torch.distributed as dist
from oracle import same

pytestmark = pytest.mark.v1

EXPERTS = 12


def round_trip(buffer, rank, size, seed=0):
    everyone = oracle.batches((5, 7, 3, 4)[:size], experts=EXPERTS, seed=seed)
    batch = everyone[rank]
    layout = buffer.get_dispatch_layout(batch.ids, EXPERTS)
    recv_x, *_, handle, _ = buffer.dispatch(
        batch.x, None, layout[0], layout[1], layout[3], layout[2], batch.ids, batch.weights
    )
    same(recv_x, oracle.arrivals(everyone, rank, EXPERTS).x, "recv_x")
    reached = oracle.ranks_reached(batch, size, EXPERTS).to(batch.x.dtype)
    same(buffer.combine(recv_x, handle)[0], batch.x * reached, "combined_x")


def subgroups_body(rank):
    """Strided, the end of the world, two that overlap, used in turn; torch numbers a group's ranks ascending."""
    members = [[0, 2], [1, 2, 3], [0, 3]] if rank.size == 4 else [[0, 1]]
    groups = [(one, dist.new_group(one)) for one in members]
    mine = [(one.index(rank.rank), len(one), group) for one, group in groups if rank.rank in one]
    buffers = [(deep_ep.Buffer(group, 1 << 25), own, size) for own, size, group in mine]
    for seed in range(2):
        for buffer, own, size in buffers:
            assert (buffer.rank, buffer.group_size) == (own, size)
            round_trip(buffer, own, size, seed)
    dist.barrier(rank.group)


def test_parts_of_the_world(world):
    world.run(subgroups_body)


class Communicator:
    """As much of mpi4py.MPI.Comm as is used."""

    def __init__(self, rank):
        self._rank = rank

    def Get_rank(self):  # noqa: N802
        return self._rank.rank

    def Get_size(self):  # noqa: N802
        return self._rank.size

    def allgather(self, mine):
        everyone = [None] * self._rank.size
        dist.all_gather_object(everyone, mine, group=self._rank.group)
        return everyone


def mpi_body(rank):
    buffer = deep_ep.Buffer(None, 1 << 25, comm=Communicator(rank))
    assert buffer.group is None
    round_trip(buffer, rank.rank, rank.size)
    try:
        deep_ep.Buffer(None, 1 << 25, comm=7)
    except ValueError as error:
        assert "comm is a int" in str(error)
    else:
        raise AssertionError("no error")


def test_an_mpi4py_communicator(world):
    world.run(mpi_body)


def many_body(rank):
    """A buffer for each of many layers, built, used and dropped; memory and descriptors come back."""
    import gc
    import os

    def used():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = None
    for _ in range(3):
        buffers = [deep_ep.Buffer(rank.group, 1 << 25, explicitly_destroy=i % 2 == 0) for i in range(6)]
        for buffer in buffers:
            round_trip(buffer, rank.rank, rank.size)
        dist.barrier(rank.group)
        for buffer in buffers[::2]:
            buffer.destroy()
        del buffer, buffers
        before = used() if before is None else before
    assert used() <= before


def test_many_buffers_come_and_go(world):
    world.run(many_body)


def once_more(rank, restart):
    """What torchrun does after a failure: new processes, another port, the same environment."""
    buffer = deep_ep.Buffer(rank.group, 1 << 25)
    round_trip(buffer, rank.rank, rank.size, restart)
    return torch.distributed.get_world_size()


def test_processes_may_start_again(world):
    """No port and no secret of the first start is used by the second."""
    first = world.run(once_more, 0)
    world.stop()
    assert world.run(once_more, 1) == first
