"""Torch tensors on GPUs: ranks that are processes, their gradients, and the ways by which windows are reached."""

from __future__ import annotations

from typing import Any

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
from gpus import EXPERTS, HIDDEN, TOKENS, batch, host, on_gpus, round_trip, same, settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


def process(bootstrap: heddle.Bootstrap) -> tuple[Any, str]:
    torch.cuda.set_device(bootstrap.rank % torch.cuda.device_count())
    with heddle.Buffer(bootstrap, experts=EXPERTS, device="cuda", timeout=ranks.PATIENCE) as buffer:
        received, combined = round_trip(buffer, [one.cuda() for one in batch(buffer.rank)], {"layout": "token_major"})
        bootstrap.barrier("leaving together")
        return combined.x.cpu().float().numpy(), buffer.windows


def test_ranks_that_are_processes():
    wanted = ranks.buffers(
        2, lambda buffer: round_trip(buffer, batch(buffer.rank), {"layout": "token_major"}), experts=EXPERTS
    )
    for rank, (seen, windows) in enumerate(ranks.on_processes(2, process)):
        assert windows in ("fabric", "descriptor", "pinned")
        assert torch.equal(torch.from_numpy(seen), wanted[rank][1].x.float())


def gradients(buffer: heddle.Buffer, tensors: list[Any]) -> list[Any]:
    import heddle.torch as moe

    x, ids, weights = tensors
    x, weights = x.float().requires_grad_(), weights.requires_grad_()
    tokens = moe.dispatch(buffer, buffer.plan(ids), x, weights, layout="expert_major")
    out = moe.combine(buffer, tokens.handle, tokens.x * tokens.weights[:, None] * 2)
    out.sum().backward()
    return [one.cpu().numpy() for one in (out.detach(), x.grad, weights.grad)]


def gradients_on_gpu(bootstrap: heddle.Bootstrap) -> list[Any]:
    torch.cuda.set_device(bootstrap.rank % torch.cuda.device_count())
    with heddle.Buffer(bootstrap, experts=EXPERTS, device="cuda", timeout=ranks.PATIENCE) as buffer:
        results = gradients(buffer, [one.cuda() for one in batch(buffer.rank)])
        bootstrap.barrier("leaving together")
        return results


# Processes: torch goes backward in one thread a GPU, in which two ranks would wait for one another.
def test_gradients_are_those_of_the_cpu():
    expected = ranks.buffers(2, lambda buffer: gradients(buffer, list(batch(buffer.rank))), experts=EXPERTS)
    for seen, wanted in zip(ranks.on_processes(2, gradients_on_gpu), expected, strict=True):
        for one, other in zip(seen, wanted, strict=True):
            assert (one == other).all()


def test_pinned_windows():
    def body(buffer, meet):
        assert buffer.windows == "pinned"
        received, combined = round_trip(buffer, [one.cuda() for one in batch(0)], {"layout": "token_major"})
        assert host(combined.x).shape == (TOKENS, HIDDEN)

    on_gpus(1, body, experts=EXPERTS, pinned_windows=True)


def test_pairs_in_pinned_memory():
    def body(buffer, meet):
        assert buffer.windows == "mixed"
        apart = {0: [2], 1: [], 2: [0]}[buffer.rank]
        assert [rank for rank, path in enumerate(buffer.paths) if path == "pinned"] == apart
        x, ids, weights = (one.cuda() for one in batch(buffer.rank))
        settle()
        meet()
        for layout in ("token_major", "expert_major"):
            received, combined = round_trip(buffer, (x, ids, weights), {"layout": layout})
            assert host(combined.x).shape == (TOKENS, HIDDEN)
        return host(combined.x)

    wanted = ranks.buffers(
        3, lambda buffer: round_trip(buffer, batch(buffer.rank), {"layout": "expert_major"})[1].x, experts=EXPERTS
    )
    seen = on_gpus(3, body, experts=EXPERTS, pinned_pairs=[(2, 0)])
    assert all(same(one, other) for one, other in zip(seen, wanted, strict=True))


def test_the_doctor_tells_the_path_of_gpus():
    from heddle.doctor.gpu_paths import gpu_paths

    (line,) = gpu_paths(2)
    assert line.topic.startswith("GPU path 0-") and line.found.split(":")[0] in ("fabric", "descriptor", "pinned")
