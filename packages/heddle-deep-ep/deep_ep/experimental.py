"""The experimental parts of V2: gathering tensors, passing them along a ring, looking up rows. One host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from heddle import UsageError

from .checks import describe, positive
from .column_major import column_major
from .engine import Engine, telling_others
from .packets import from_rows, to_rows
from .ring import Ring
from .sizes import align

_ALIGNMENT = 2 << 20


class Done:
    """What an all_gather leaves: wait() or a call returns once its tensors are valid, which they are."""

    def wait(self) -> None:
        pass

    __call__ = wait


class Experimental:
    """Mixed into ElasticBuffer. R ranks."""

    num_ranks: int
    rank_idx: int
    runtime: Engine

    # --- gathering ---

    @staticmethod
    def get_agrs_num_max_session_bytes(group: Any, shapes: Any, dtype: torch.dtype) -> int:
        """Bytes that tensors of these shapes take on all ranks; one shape or a list."""
        return sum(group.size() * align(shape.numel() * dtype.itemsize, 32) for shape in _shapes(shapes))

    @staticmethod
    def get_agrs_buffer_size_hint(group: Any, num_max_session_bytes: int) -> int:
        return align(positive("num_max_session_bytes", num_max_session_bytes, 0), _ALIGNMENT)

    def agrs_set_config(self, num_max_session_bytes: int, num_max_all_gathers_per_session: int = 32) -> None:
        """Accepted: nothing is reserved."""
        positive("num_max_session_bytes", num_max_session_bytes, 0)
        positive("num_max_all_gathers_per_session", num_max_all_gathers_per_session)

    def create_agrs_session(self) -> None:
        """Accepted: calls need no session."""
        self.runtime.check_alive()

    def destroy_agrs_session(self) -> None:
        """Accepted: calls need no session."""

    @contextmanager
    def agrs_new_session(self, enabled: bool = True) -> Iterator[None]:
        if enabled:
            self.create_agrs_session()
        yield

    def agrs_get_inplace_tensor(self, shapes: Any, dtype: torch.dtype) -> Any:
        """Tensors to fill and pass to all_gather(): one for one shape, a tuple for a list."""
        device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
        made = tuple(torch.empty(shape, dtype=dtype, device=device) for shape in _shapes(shapes))
        return made[0] if _is_shape(shapes) else made

    def all_gather(self, tensors: torch.Tensor | Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """(one [R, ...] for each tensor, a handle whose wait() says that they are valid). Collective."""
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        return (*[self._gather(one) for one in given], Done())

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"tensors has {describe(tensor)}, legal: tensors")
        buffer = self.runtime.any_buffer(tensor.device)
        with telling_others(buffer, "dispatch"):
            rows = to_rows(tensor)
            everywhere = torch.ones(rows.shape[0], self.num_ranks, dtype=torch.bool, device=tensor.device)
            plan = buffer.plan_from_rank_map(everywhere)
        received = buffer.dispatch(plan, rows)
        parts = received.x.view(self.num_ranks, -1)
        return torch.stack([from_rows(part, tensor.shape, tensor.dtype) for part in parts])

    # --- a ring ---

    @staticmethod
    def get_pp_buffer_size_hint(num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> int:
        tensor = align(positive("num_max_tensor_bytes", num_max_tensor_bytes), 32)
        return align(4 * tensor * positive("num_max_inflight_tensors", num_max_inflight_tensors), _ALIGNMENT)

    def pp_set_config(self, num_max_tensor_bytes: int, num_max_inflight_tensors: int) -> None:
        """Connects each rank with the next and the one before. Collective."""
        self.runtime.check_alive()
        num_bytes = positive("num_max_tensor_bytes", num_max_tensor_bytes)
        self._ring = Ring(
            self.runtime.bootstrap, num_bytes, positive("num_max_inflight_tensors", num_max_inflight_tensors)
        )

    def pp_send(self, t: torch.Tensor, dst_rank_idx: int, num_sms: int = 0) -> None:
        """Sends to the next rank or the one before; returns before it is received, as long as fewer than
        num_max_inflight_tensors are under way."""
        self._configured_ring("pp_send").send(t, dst_rank_idx)

    def pp_recv(self, t: torch.Tensor, src_rank_idx: int, num_sms: int = 0) -> None:
        """Fills `t`, of the shape and type that was sent, with the next tensor of a neighbour."""
        self._configured_ring("pp_recv").receive(t, src_rank_idx)

    _ring: Ring | None = None

    def _configured_ring(self, method: str) -> Ring:
        if self._ring is None:
            raise UsageError(f"{method}: the ring is not configured, legal after pp_set_config()")
        return self._ring

    # --- a table of rows ---

    @staticmethod
    def get_engram_storage_size_hint(
        num_entries: int, hidden: int, num_max_tokens_per_rank: int, dtype: torch.dtype = torch.bfloat16
    ) -> tuple[int, int]:
        """(bytes on the GPU, bytes on the host)."""
        table = positive("num_entries", num_entries) * positive("hidden", hidden) * dtype.itemsize
        return align(table, _ALIGNMENT), 0

    def engram_write(self, storage: torch.Tensor, sf: torch.Tensor | None = None) -> None:
        """Every rank's rows [n, H] (and scales [n, P]) become a table that each rank keeps. Collective."""
        if not isinstance(storage, torch.Tensor) or storage.dim() != 2:
            raise UsageError(f"storage is {describe(storage)}, legal: [entries, hidden]")
        self._table = self._gather(storage).flatten(0, 1)
        self._table_scales = None if sf is None else self._gather(sf).flatten(0, 1)

    def engram_fetch(
        self, indices: torch.Tensor, num_qps: int = 0, use_tma_aligned_col_major_sf: bool = False
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        """A hook that returns (rows [T, e, H], scales [T, e, P] or None) of indices [T, e] int32 into the table. On a
        GPU the rows of other indices are zero; on the CPU they raise.

        use_tma_aligned_col_major_sf  scales of a 4-byte type with strides (e, 1, T e rounded up to 4)"""
        if self._table is None:
            raise UsageError("engram_fetch: there is no table, legal after engram_write()")
        if not isinstance(indices, torch.Tensor) or indices.dim() != 2 or indices.dtype != torch.int32:
            raise UsageError(f"indices is {describe(indices)}, legal: int32 [tokens, entries]")
        table, scales, chosen = self._table, self._table_scales, indices.to(torch.int64)
        if use_tma_aligned_col_major_sf and scales is not None and scales.element_size() != 4:
            raise UsageError(
                f"use_tma_aligned_col_major_sf is True with sf of {scales.dtype}, legal: with a type of 4 bytes"
            )
        entries = self._table.shape[0]
        if not indices.is_cuda and indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < entries:
            raise UsageError(f"indices has {int(indices.min())} to {int(indices.max())}, legal: 0 to {entries - 1}")
        ordered = column_major if use_tma_aligned_col_major_sf else _as_it_is
        return lambda: (_rows(table, chosen), None if scales is None else ordered(_rows(scales, chosen)))

    _table: torch.Tensor | None = None
    _table_scales: torch.Tensor | None = None


def _rows(table: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Rows of any element type: some have no index_select."""
    flat = chosen.flatten()
    legal = (flat >= 0) & (flat < table.shape[0])
    raw_rows = table.view(torch.uint8)[torch.where(legal, flat, 0)]
    return torch.where(legal[:, None], raw_rows, 0).view(table.dtype).view(*chosen.shape, table.shape[1])


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _is_shape(shapes: Any) -> bool:
    return isinstance(shapes, torch.Size) or all(isinstance(one, int) for one in shapes)


def _shapes(shapes: Any) -> list[torch.Size]:
    return [torch.Size(shapes)] if _is_shape(shapes) else [torch.Size(one) for one in shapes]
