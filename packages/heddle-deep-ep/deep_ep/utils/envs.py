"""How test programs begin, and what their machine's links can do."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import torch
import torch.distributed as dist

from ..sm_model import measured_nvlink_gbs


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> tuple[int, int, Any]:
    """(rank, ranks, group) of a process of one of WORLD_SIZE nodes, this being node RANK. NCCL where there are
    GPUs, which then are the default device; else gloo. bfloat16 becomes the default type."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", "8361"))
    nodes, node = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    rank, ranks = node * num_local_ranks + local_rank, nodes * num_local_ranks
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(seed + rank)
    dist.init_process_group(
        "nccl" if has_gpu else "gloo", init_method=f"tcp://{address}:{port}", world_size=ranks, rank=rank
    )
    return rank, ranks, dist.new_group(list(range(ranks)))


def get_nvlink_gbs(factor: float = 0.9) -> float:
    """GB/s of the first GPU's links, times `factor`."""
    return measured_nvlink_gbs() / 0.9 * factor


def get_rdma_gbs() -> float:
    """GB/s of the network adapter EP_NIC_NAME (mlx5_0); 0 if there is none to ask."""
    adapter = os.environ.get("EP_NIC_NAME", "mlx5_0")
    try:
        text = subprocess.run(["ibstat", adapter], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0.0
    rate = re.search(r"Rate: (\d+)", text)
    return int(rate.group(1)) / 8 if rate else 0.0
