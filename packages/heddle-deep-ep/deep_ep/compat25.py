"""The experimental parts under their names of release 2.5, each with a buffer of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from .checks import positive
from .elastic import ElasticBuffer
from .ep import BufferBase


class _OfElastic(BufferBase):
    """Holds an ElasticBuffer."""

    def __init__(self, group: Any, num_bytes: int = 0, explicitly_destroy: bool = False, **settings: Any) -> None:
        self.buffer = ElasticBuffer(
            group, positive("num_bytes", num_bytes, 0), explicitly_destroy=explicitly_destroy, **settings
        )
        self.group = group
        self.runtime = self.buffer.runtime

    def destroy(self) -> None:
        self.buffer.destroy()


class EngramBuffer(_OfElastic):
    """A table of rows of all ranks: write(), fetch()."""

    get_storage_size_hint = staticmethod(ElasticBuffer.get_engram_storage_size_hint)

    def write(self, storage: torch.Tensor, sf: torch.Tensor | None = None) -> None:
        self.buffer.engram_write(storage, sf)

    def fetch(self, indices: torch.Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = False) -> Any:
        return self.buffer.engram_fetch(indices, num_qps, use_tma_aligned_col_major_sf)

    engram_write, engram_fetch = write, fetch


class PPBuffer(_OfElastic):
    """Tensors to the neighbours of a ring: set_config(), send(), recv()."""

    get_buffer_size_hint = staticmethod(ElasticBuffer.get_pp_buffer_size_hint)

    def set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        self.buffer.pp_set_config(num_max_tensor_bytes, num_max_inflight_tensors)

    def send(self, t: torch.Tensor, dst_rank_idx: int, num_sms: int = 0) -> None:
        self.buffer.pp_send(t, dst_rank_idx, num_sms)

    def recv(self, t: torch.Tensor, src_rank_idx: int, num_sms: int = 0) -> None:
        self.buffer.pp_recv(t, src_rank_idx, num_sms)

    pp_set_config, pp_send, pp_recv = set_config, send, recv


class BucketSession:
    """A time in which a BucketBuffer gathers."""

    def __init__(self, buffer: BucketBuffer) -> None:
        self._session: AbstractContextManager[None] = buffer.buffer.agrs_new_session()

    def __enter__(self) -> BucketSession:
        self._session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._session.__exit__(*error)


class BucketBuffer(_OfElastic):
    """Tensors of all ranks, gathered: all_gather()."""

    def new_session(self) -> BucketSession:
        return BucketSession(self)

    def get_inplace_tensor(self, shapes: Any, dtype: torch.dtype) -> Any:
        return self.buffer.agrs_get_inplace_tensor(shapes, dtype)

    def all_gather(self, tensors: Any) -> tuple[Any, ...]:
        return self.buffer.all_gather(tensors)
