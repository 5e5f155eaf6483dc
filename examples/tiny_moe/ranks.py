"""Training on several ranks: this process is rank 0, and starts the others."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import heddle
import numpy as np
import torch
import torch.multiprocessing

from .experts import HeddleExperts
from .model import TinyMoe
from .size import Size
from .text import Text
from .training import Record, train

PATIENCE = 60.0  # seconds that a rank waits for another


@dataclass(frozen=True)
class Job:
    """What every rank must know."""

    ranks: int
    steps: int
    seed: int
    address: str
    secret: str
    folder: str
    size: Size = Size()


@dataclass
class Traffic:
    """What a rank sent to others."""

    experts: int  # that it holds
    rows: int  # token rows that routing sends to other ranks, one way, summed over layers and steps
    dispatch_bytes: int  # forward, and backward of combine
    combine_bytes: int  # forward, and backward of dispatch
    seconds: float  # in Heddle's calls, waiting for slower ranks included


def train_on_ranks(ranks: int, steps: int, seed: int) -> list[tuple[Record, Traffic]]:
    """By rank. Raises what a rank raised."""
    listener, port = heddle.tcp_listen()
    with TemporaryDirectory() as folder:
        job = Job(ranks, steps, seed, address=f"127.0.0.1:{port}", secret=heddle.make_secret(), folder=folder)
        others = torch.multiprocessing.spawn(_run_other, (job,), nprocs=ranks - 1, join=False, daemon=True)
        try:
            first = _run(0, job, listener)
        except Exception:
            others.join(timeout=5)  # raises what another rank raised, where that is the reason
            raise
        while not others.join():
            pass
        return [first, *(torch.load(_path(rank, job), weights_only=False) for rank in range(1, ranks))]


def _run_other(index: int, job: Job) -> None:
    rank = index + 1
    torch.save(_run(rank, job), _path(rank, job))


def _path(rank: int, job: Job) -> Path:
    return Path(job.folder) / f"rank{rank}.pt"


def _run(rank: int, job: Job, listener: int = -1) -> tuple[Record, Traffic]:
    torch.set_num_threads(1)  # ranks share the cores
    size, text = job.size, Text(job.size, job.seed)
    group = heddle.tcp(rank, job.ranks, job.address, job.secret, PATIENCE, listener=listener)
    with heddle.Buffer(group, experts=size.experts, window_bytes=8 << 20, timeout=PATIENCE) as buffer:
        model = TinyMoe(size, job.seed, lambda seed: HeddleExperts(size, seed, buffer))
        record = train(
            model,
            size,
            text,
            steps=job.steps,
            share=size.share(rank, job.ranks),
            sum_over_ranks=lambda tensors: _sum(group, tensors),
        )
        group.barrier("training is over")
        return record, _traffic(model, buffer)


def _sum(group: heddle.Bootstrap, tensors: list[torch.Tensor]) -> None:
    """Adds in the order of the ranks, so that all have the same bits afterwards."""
    mine = torch.cat([tensor.flatten() for tensor in tensors]).numpy().tobytes()
    everyone = [np.frombuffer(one, np.float32) for one in group.all_gather(mine, "sum of gradients")]
    total = torch.from_numpy(sum(everyone[1:], everyone[0].copy()))
    for tensor, part in zip(tensors, total.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def _traffic(model: TinyMoe, buffer: heddle.Buffer) -> Traffic:
    metrics = buffer.metrics()
    return Traffic(
        experts=len(buffer.local_experts),
        rows=sum(module.rows_for_others for module in model.modules() if isinstance(module, HeddleExperts)),
        dispatch_bytes=metrics.dispatch.bytes_sent,
        combine_bytes=metrics.combine.bytes_sent,
        seconds=(metrics.dispatch.nanoseconds + metrics.combine.nanoseconds) / 1e9,
    )
