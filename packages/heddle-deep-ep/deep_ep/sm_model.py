"""How many multiprocessors and queue pairs DeepEP's model recommends. Numbers for callers: Heddle chooses for
itself."""

from __future__ import annotations

import functools
import math
import re
import subprocess
from typing import NamedTuple

import torch
from heddle import UsageError

H200_SMS = 132
H200_NVLINK_GBS = 430.3  # 0.9 x 18 links of 26.562 GB/s
SM_READ_GBS, SM_WRITE_GBS = 200.0, 50.0


class Model(NamedTuple):
    """What differs between versions."""

    factor: float
    multiple: int
    read_gbs: float
    write_gbs: float
    two_ways: bool  # combine's terms as well


V2 = Model(1.25, 2, SM_READ_GBS, SM_WRITE_GBS, False)
V25 = Model(1.3, 4, 180.0, 45.0, True)


@functools.cache
def measured_nvlink_gbs() -> float:
    """GB/s of the first GPU's links; those of an H200 where there is no GPU to ask."""
    try:
        text = subprocess.run(
            ["nvidia-smi", "nvlink", "-s"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return H200_NVLINK_GBS
    first = text.split("GPU 1:")[0]
    return 0.9 * sum(float(gbs) for gbs in re.findall(r"Link \d+: ([\d.]+) GB/s", first))


def num_device_sms() -> int:
    """Of the current GPU; of an H200 where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return H200_SMS
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def ranks_of_token(groups: int, experts: int, topk: int) -> float:
    """Expected number of `groups` equal groups of experts that a token's random experts lie in."""
    return groups * (1 - math.comb(experts - experts // groups, topk) / math.comb(experts, topk))


def theoretical_num_sms(
    ranks: int, experts: int, topk: int, *, model: Model, nvlink: float, read: float, write: float, overlaps: bool
) -> int:
    """Multiprocessors that keep the links busy, for ranks of one NVLink domain.

    Raises UsageError if K is not 1 to E.
    """
    if not 1 <= topk <= experts:
        raise UsageError(f"num_topk = {topk}, legal: 1 to num_experts = {experts}")
    limit = num_device_sms()
    read, write = read or model.read_gbs, write or model.write_gbs
    wanted = float(limit)
    volume = 1 - 1 / ranks
    if volume > 0 and nvlink > 0:
        reached = ranks_of_token(ranks, experts, topk) or 1.0
        rows = nvlink / volume
        wanted = max(rows / reached / read, rows / write)
        if model.two_ways:
            wanted = max(wanted, rows * (1 - volume) / read, rows * (1 / reached + volume) / write)
    sms = max(4, math.ceil(model.factor * wanted))
    sms = -(-sms // model.multiple) * model.multiple
    return min(sms if overlaps else max(sms, 64), limit // 2 * 2)
