"""Plan and Handle: the route of one batch, and what its combine needs to know."""

from __future__ import annotations

import sys
from typing import Any

from . import _core
from .errors import UsageError
from .frameworks import Array


def _bool_of(torch: bool) -> Any:
    return sys.modules["torch"].bool if torch else bool


class _Route:
    """Wraps a C++ route. Its tensors come out in the framework that the plan's ids came from, sharing memory."""

    __slots__ = ("_core", "_torch")

    def __init__(self, core: Any, torch: bool) -> None:
        self._core = core
        self._torch = torch

    def _tensor(self, name: str) -> Array:
        return getattr(self._core, name)(self._torch)

    def __reduce__(self) -> Any:
        raise UsageError(f"a {type(self).__name__} cannot be pickled: it belongs to a buffer of this process")


class Plan(_Route):
    """The route of one batch of T tokens with K columns. Immutable; good for any number of dispatches."""

    __slots__ = ()
    _core: _core.Plan

    @property
    def tokens(self) -> int:
        """T."""
        return self._core.tokens

    @property
    def topk(self) -> int:
        """K; 0 for a plan from a rank map."""
        return self._core.topk

    @property
    def ids(self) -> Array:
        """[T, K] int32 expert ids, -1 = none."""
        return self._tensor("ids")

    @property
    def is_token_in_rank(self) -> Array:
        """[T, R] bool: the token goes to the rank."""
        bytes_ = self._tensor("is_token_in_rank")
        return bytes_.view(_bool_of(self._torch)) if self.topk else bytes_ != 0  # a caller's map may have other bytes

    @property
    def num_tokens_per_rank(self) -> Array:
        """[R] int32 tokens sent to each rank."""
        return self._tensor("num_tokens_per_rank")

    @property
    def num_tokens_per_expert(self) -> Array:
        """[E] int32 (token, column) pairs: a token that names an expert twice counts twice."""
        return self._tensor("num_tokens_per_expert")

    @property
    def num_rows_per_expert(self) -> Array:
        """[E] int32 distinct tokens of each expert."""
        return self._tensor("num_rows_per_expert")

    def __repr__(self) -> str:
        return f"Plan(tokens={self.tokens}, topk={self.topk})"


class Handle(_Route):
    """What a combine needs to know of the dispatch whose results it brings back. n tokens were received from R ranks.
    Immutable; any number may be alive; does not survive a reset()."""

    __slots__ = ()
    _core: _core.Handle

    @property
    def plan(self) -> Plan:
        """The route that was dispatched."""
        return Plan(self._core.plan, self._torch)

    @property
    def num_received(self) -> int:
        """n."""
        return self._core.num_received

    def tensors(self) -> tuple[Array, Array, Array, Array]:
        """(recv_offset, recv_token, source_tokens, recv_ids): those that Buffer.handle() makes a handle from."""
        return self._core.tensors(self._torch)

    @property
    def recv_offset(self) -> Array:
        """[R + 1] int32, prefix of received tokens by source."""
        return self._tensor("recv_offset")

    @property
    def recv_token(self) -> Array:
        """[n] int32, index of each token in its source's batch."""
        return self._tensor("recv_token")

    @property
    def source_tokens(self) -> Array:
        """[R] int32, T of each source."""
        return self._tensor("source_tokens")

    @property
    def row_of(self) -> Array | None:
        """[n, K] int32 output row of each hit; -1 none, -2 dropped. None for token-major."""
        return self._tensor("row_of")

    @property
    def recv_ids(self) -> Array:
        """[n, K] int32 local expert ids, -1 = not of this rank."""
        return self._tensor("recv_ids")

    @property
    def recv_weights(self) -> Array:
        """[n, K] float32, 0 where recv_ids is -1."""
        return self._tensor("recv_weights")

    @property
    def status(self) -> Array:
        """[R] uint8: 0 arrived, 1 masked."""
        return self._tensor("status")

    def __repr__(self) -> str:
        return f"Handle(num_received={self.num_received})"
