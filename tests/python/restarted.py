"""What torchrun runs in test_restart.py: rank 1 fails in the first attempt, after a round trip.

restarted.py group|store    ranks meet by a gloo group, or by torchrun's store alone
"""

import os
import pickle
import sys

import deep_ep
import torch
import torch.distributed as dist

EXPERTS = 8


def store_of(attempt):
    """torchrun's, which all attempts share. torch 2.13 gives gloo no prefix for each, so that ranks of the second look
    for those of the first."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore(f"attempt {attempt}", store)


class StoreComm:
    """As much of mpi4py.MPI.Comm as deep_ep takes, over a store."""

    def __init__(self, store, rank, size):
        self._store, self._rank, self._size = store, rank, size
        self._round = 0

    def Get_rank(self):  # noqa: N802
        return self._rank

    def Get_size(self):  # noqa: N802
        return self._size

    def allgather(self, mine):
        self._round += 1
        self._store.set(f"{self._round} {self._rank}", pickle.dumps(mine))
        return [pickle.loads(self._store.get(f"{self._round} {rank}")) for rank in range(self._size)]


def round_trip(buffer, rank):
    x = torch.full((4, 16), float(rank + 1), dtype=torch.bfloat16)
    ids = torch.arange(8).reshape(4, 2)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
    recv_x, *_, handle, _ = buffer.dispatch(
        x,
        num_tokens_per_rank=per_rank,
        num_tokens_per_expert=per_expert,
        is_token_in_rank=in_rank,
        topk_idx=ids,
        topk_weights=torch.ones(4, 2),
    )
    assert torch.equal(buffer.combine(recv_x, handle)[0], x)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    store = store_of(attempt)
    if sys.argv[1] == "group":
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        buffer = deep_ep.Buffer(dist.group.WORLD, 1 << 25)
    else:
        buffer = deep_ep.Buffer(None, 1 << 25, comm=StoreComm(store, rank, size))
    round_trip(buffer, rank)
    if attempt == 0 and rank == 1:
        os._exit(7)  # as a crash would: nothing is destroyed, nobody is told
    round_trip(buffer, rank)
    print(f"rank {rank} went through attempt {attempt}", flush=True)


main()
