"""Robustness case 17 on GPUs: calls beside other work, other collectives, and any number of multiprocessors."""

from __future__ import annotations

from typing import Any

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
from gpu_trips import masked_ids, ranks_reached, trip  # noqa: E402
from gpus import host, on_gpus, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


def test_case_17_other_work_on_the_gpu():
    """(a) A queue of large products holds the multiprocessors: late, and right."""

    def body(buffer, meet):
        ids, x = masked_ids(16, "", buffer.rank), torch.ones(16, 64, device="cuda")
        other, matrix = torch.cuda.Stream(), torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
        settle()
        meet()
        with torch.cuda.stream(other):
            for _ in range(40):
                matrix @ matrix
        for _ in range(5):
            y = trip(buffer, ids, x)
        assert torch.equal(host(y), host(x * ranks_reached(ids, buffer.size, 8)))

    on_gpus(2, body, experts=8, max_tokens=16)


@pytest.mark.parametrize("num_sms", [None, 1, 7, 10**6])
def test_case_17_any_number_of_multiprocessors(num_sms):
    """(c) Odd, one, more than there are."""

    def body(buffer, meet):
        ids, x = masked_ids(16, "", buffer.rank), torch.ones(16, 64, device="cuda")
        settle()
        meet()
        received = buffer.dispatch(buffer.plan(ids, num_sms=num_sms), x, num_sms=num_sms)
        y = buffer.combine(received.handle, received.x, num_sms=num_sms).x
        assert torch.equal(host(y), host(x * ranks_reached(ids, buffer.size, 8)))
        with pytest.raises((heddle.UsageError, heddle.RefusedError), match="num_sms"):
            buffer.dispatch(received.handle.plan, x, num_sms=-1)

    on_gpus(2, body, experts=8, num_sms=num_sms)


@pytest.mark.parametrize("num_sms", [8, 16])
def test_case_17_two_collectives_in_opposite_orders(num_sms):
    """(b) What two libraries do: one communicator's kernels stand on each rank in the queue before or behind the
    other's, on streams of their own. As the multiprocessors of all of them fit, each comes to its end."""
    streams, buffers = {}, {}

    def body(buffer, meet):
        ids, x = masked_ids(16, "", buffer.rank), torch.ones(16, 64, device="cuda")
        streams[buffer.rank] = torch.cuda.Stream()
        wanted = x * ranks_reached(ids, buffer.size, 8)
        settle()
        meet()
        if buffer.rank == 0:
            buffers.update(enumerate(heddle.in_process(buffer.size, ranks.PATIENCE)))
        meet()
        other = heddle.Buffer(
            buffers[buffer.rank], experts=8, max_tokens=16, device="cuda", timeout=ranks.PATIENCE, num_sms=num_sms
        )
        first, second = (buffer, other) if buffer.rank == 0 else (other, buffer)
        settle()
        meet()
        for round in range(50):
            results = {}
            for one in (first, second):
                with torch.cuda.stream(streams[buffer.rank] if one is other else torch.cuda.current_stream()):
                    results[one is other] = trip(one, ids, x * (round + 1))
            torch.cuda.current_stream().wait_stream(streams[buffer.rank])
            if round % 10 == 9:
                assert all(torch.equal(host(y), host(wanted * (round + 1))) for y in results.values())
        meet()
        other.destroy()

    on_gpus(2, body, experts=8, max_tokens=16, num_sms=num_sms)


def beside_nccl(bootstrap: heddle.Bootstrap) -> Any:
    """A rank whose stream beside has NCCL's work before each call, or behind it: two ranks on one GPU can have no
    communicator together, so each has one of its own."""
    import torch.distributed as dist

    torch.cuda.set_device(bootstrap.rank % torch.cuda.device_count())
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    beside, sums = torch.cuda.Stream(), torch.ones(1 << 22, device="cuda")
    ids, x = masked_ids(16, "", bootstrap.rank), torch.ones(16, 64, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")

    def collect() -> None:
        with torch.cuda.stream(beside):
            gathered = torch.empty_like(sums)
            dist.all_gather_into_tensor(gathered, sums)
            dist.all_reduce(gathered)

    with heddle.Buffer(bootstrap, experts=8, max_tokens=16, device="cuda", timeout=ranks.PATIENCE) as buffer:
        wanted = x * ranks_reached(ids, buffer.size, 8)
        for round in range(20):
            if round % 2 == bootstrap.rank:
                collect()
            wrong += (trip(buffer, ids, x) != wanted).sum()
            if round % 2 != bootstrap.rank:
                collect()
        torch.cuda.synchronize()
        bootstrap.barrier("leaving together")
    dist.destroy_process_group()
    return int(wrong)


def test_case_17_beside_nccl():
    """(b) before the call on one rank, behind it on the other."""
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    assert ranks.on_processes(2, beside_nccl) == [0, 0]
