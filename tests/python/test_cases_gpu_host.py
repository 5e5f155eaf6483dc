"""Robustness case 24 on GPUs, gradients, and the host's wait for counts."""

from __future__ import annotations

import threading
from typing import Any

import heddle
import pytest
import ranks

torch = pytest.importorskip("torch")
from gpu_trips import masked_ids  # noqa: E402
from gpus import settle  # noqa: E402

pytestmark = pytest.mark.skipif(bool(heddle._core.cuda_problem()), reason=heddle._core.cuda_problem())


def moe(buffer: heddle.Buffer, x: Any, ids: Any, weights: Any, scale: Any) -> Any:
    import heddle.torch as front

    tokens = front.dispatch(buffer, buffer.plan(ids), x, weights, layout="expert_major")
    return front.combine(buffer, tokens.handle, tokens.x * tokens.weights[:, None] * scale)


def train(bootstrap: heddle.Bootstrap) -> Any:
    """Two layers on one buffer, an evaluation between steps, a rank without tokens, one layer recomputed."""
    torch.cuda.set_device(bootstrap.rank % torch.cuda.device_count())
    tokens = (0, 9)[bootstrap.rank]
    dice = torch.Generator().manual_seed(5 + bootstrap.rank)
    x = torch.randint(-3, 4, (tokens, 32), generator=dice).float().cuda().requires_grad_()
    ids = torch.randint(-1, 3, (tokens, 2), generator=dice).cuda()  # expert 3 gets nothing
    weights = torch.randint(1, 4, (tokens, 2), generator=dice).float().cuda().requires_grad_()
    scale = torch.tensor(2.0, device="cuda", requires_grad=True)
    with heddle.Buffer(bootstrap, experts=4, device="cuda", timeout=ranks.PATIENCE) as buffer:
        first = moe(buffer, x, ids, weights, scale)
        with torch.no_grad():
            moe(buffer, x, ids, weights, scale)
        second = torch.utils.checkpoint.checkpoint(
            lambda y: moe(buffer, y, ids, weights, scale), first, use_reentrant=False
        )
        second.sum().backward()
        bootstrap.barrier("leaving together")
        return [one.detach().cpu().numpy() for one in (second, x.grad, weights.grad, x, ids, weights)]


def test_case_24_gradients_are_those_of_a_dense_model():
    import torch.utils.checkpoint  # noqa: F401

    for results in ranks.on_processes(2, train):
        *seen, x, ids, weights = map(torch.from_numpy, results)
        x.requires_grad_()
        weights.requires_grad_()
        total = (weights * (ids >= 0)).sum(1, keepdim=True)
        wanted = x * (2 * total) * (2 * total)  # each layer: the token's row times its weights times 2
        wanted.sum().backward()
        for one, other in zip(seen, (wanted.detach(), x.grad, weights.grad), strict=True):
            assert torch.equal(one, other)


def test_a_wait_for_counts_ends_at_its_deadline_and_lets_others_run():
    """Exact sizes make the host wait for a peer's header: without the GIL, and not for ever."""
    ended, seen = threading.Event(), []

    def body(buffer, meet):
        if buffer.rank == 0:
            plan = buffer.plan(masked_ids(4, "", 0))
            settle()
            threading.Timer(0.5, lambda: seen.append(ended.is_set())).start()
            try:
                with pytest.raises(heddle.TimeoutError_, match="dispatch.*rank 1"):
                    buffer.dispatch(plan, torch.ones(4, 64, device="cuda"))
                ended.set()
                assert seen == [False]  # another thread ran in the middle of the wait
            finally:
                meet()
        else:
            meet()
        buffer.reset()

    ranks.all_well(ranks.on_threads(2, lambda one: with_a_deadline(one, body)))


def with_a_deadline(bootstrap: heddle.Bootstrap, body: Any) -> None:
    torch.cuda.set_device(0)
    with torch.cuda.stream(torch.cuda.Stream()):
        with heddle.Buffer(bootstrap, experts=8, device="cuda:0", timeout=2.0) as buffer:
            body(buffer, lambda: bootstrap.barrier("a meeting"))
            bootstrap.barrier("leaving together")
