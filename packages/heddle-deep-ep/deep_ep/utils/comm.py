"""NCCL communicators that DeepEP keeps. Heddle keeps none."""

from __future__ import annotations

from typing import Any


def destroy_all_managed_nccl_comm() -> None:
    """Nothing to destroy."""


def get_nccl_comm_ptr(group: Any) -> int:
    """0: there is no communicator of ours."""
    return 0
