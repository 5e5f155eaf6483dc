"""The calls of a Buffer for callers that count microseconds: of torch tensors on the buffer's device, on torch's
current stream; each is one call of C++ that returns its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import _core
from .calls import Calls
from .frameworks import Array
from .route import Handle, _bool_of

Receive = Callable[[], None]
"""Receives on the stream of the send; the caller orders others after that. A second call does nothing."""


class QuickCalls(Calls):
    """Mixed into Buffer. Errors are those of the calls that they stand for, and told to the other ranks."""

    def reach(self, ids: Array) -> tuple[Array, Array, Array]:
        """Of plan(ids): (num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank), as results of a call are."""
        self._ready()
        per_rank, per_expert, in_rank = self._core.reach(ids)
        return per_rank, per_expert, in_rank.view(_bool_of(True))

    def dispatch_tokens(
        self,
        by: Any,
        x: Array,
        options: _core.DispatchOptions,
        *,
        scales: Array | None = None,
        weights: Array | None = None,
    ) -> tuple[Any, ...]:
        """dispatch(), token-major, by ids or the core of a Plan. `options`: arguments.dispatch_options().

        Returns (x, scales, ids, weights, counts, Handle.recv_offset[1:, None] R times, .recv_token, .source_tokens,
        .recv_ids, plan's ids, core of the handle); ids of both are None for a plan from a rank map. counts is a list,
        empty for outputs of fixed size.
        """
        self._ready()
        return self._core.dispatch_tokens(by, x, scales, weights, options)

    def dispatch_rows(
        self, handle: Handle, x: Array, options: _core.DispatchOptions, *, scales: Array | None = None
    ) -> tuple[Array, Array | None]:
        """(x, scales) of a dispatch() by a handle. `options`: arguments.dispatch_options()."""
        self._ready()
        return self._core.dispatch_rows(handle._core, x, scales, options)

    def dispatch_slab(
        self,
        ids: Array,
        x: Array,
        options: _core.DispatchOptions,
        *,
        scales: Array | None = None,
        weights: Array | None = None,
        global_scale: Array | None = None,
        counts_total: Array | None = None,
        waits_total: Array | None = None,
        expert_ready: Array | None = None,
        splits: bool = False,
    ) -> tuple[tuple[Any, ...], Receive | None]:
        """dispatch() by ids, or dispatch_send() if it `splits`, into a slab. `options`: arguments.dispatch_options().

        Returns (outputs, what receives or None); outputs are (x, scales, num_per_expert, row_token, layout_range,
        weights, row_source, handle), those by place as [L, R x M], weights and sources only where weights were given.
        """
        self._ready()
        core = self._core
        args = (ids, x, scales, weights, global_scale, counts_total, waits_total, expert_ready, options)
        return _received(core.dispatch_slab_send(*args), core) if splits else (core.dispatch_slab(*args), None)

    def combine_rows(
        self,
        handle: Any,
        x: Array,
        *,
        bias: Array | Sequence[Array] | None = None,
        row_weights: Array | None = None,
        weights: Array | None = None,
        out: Array | None = None,
        waits_total: Array | None = None,
        ready: tuple[Array, Array | None, int, int] | None = None,
        splits: bool = False,
    ) -> tuple[tuple[Any, Any], Receive | None]:
        """combine(), or combine_send() if it `splits`. `handle`: the core of one.

        ready  of a slab whose rows a kernel still makes: (words, counts or None, rows_each, wanted). They are read once
               words, int32, show `wanted`: [L], one for all rows of an expert; or with counts [L] int32 of each
               expert's rows, word e * ceil(R M / rows_each) + i for those from i * rows_each on. A wait that ends at
               the buffer's deadline is a fault

        Returns ((sums, the weights that came back or None), what receives or None).
        """
        self._ready()
        core, args = self._core, (handle, x, bias, row_weights, weights, out, waits_total, ready)
        return _received(core.combine_rows_send(*args), core) if splits else (core.combine_rows(*args), None)

    def _ready(self) -> None:
        if self._gpu is not None and not self._has_allocator:
            self._allocate_by_torch()


def _received(made: tuple[Any, Any], core: _core.Buffer) -> tuple[Any, Receive]:
    outputs, sent = made
    return outputs, partial(sent.receive, core)
