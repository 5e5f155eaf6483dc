"""What calls return. Tensors are made on first use, and share memory with C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from . import _core
from .frameworks import Array
from .once import once
from .route import Handle

Result = TypeVar("Result")


class _Tensor:
    """An output of a call, made at its first use. None where the call has none."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, of: Any, owner: type) -> Any:
        if of is None:
            return self
        tensor = of.__dict__[self._name] = getattr(of._core, self._name)(of._torch)
        return tensor


class Received:
    """What one rank receives from a dispatch: n tokens, L local experts, R ranks, M most tokens a rank.

    Tensors that a layout does not have are None. NumPy has no bfloat16 and float8: x then holds their bits as uint16
    and uint8, and x_dtype says what they are.
    """

    def __init__(self, core: _core.Received, torch: bool) -> None:
        self._core = core
        self._torch = torch

    x = _Tensor(
        """[rows, H]; slab [L, R x M, H]. Of "nvfp4" uint8 with H / 2 columns, the even element in the low half."""
    )

    @property
    def x_dtype(self) -> str:
        """Name of x's element type: "bfloat16", "float8_e4m3fn", ..."""
        return self._core.x_dtype

    scales = _Tensor(
        """[rows, P] of a 4-byte type; slab [L, R x M, P] with strides (P R M, 1, R M). None if there are none.

        In tiles: [rows / 128, P, 32, 4], word w of row r is [r / 128, w, r % 32, r % 128 / 32]; slab the same for each
        expert, [L, R x M / 128, P, 32, 4]. rows / 128 is rounded up; what is past the last row is not written.
        """
    )

    ids = _Tensor(
        "Token-major [rows, K] int32 (int64 with wide_ids) local expert ids, -1 = not of this rank, or padding."
    )

    weights = _Tensor(
        "Token-major [rows, K] float32, 0 where ids is -1; others [rows], those of duplicate columns added."
    )

    num_per_expert = _Tensor("[L] int32: token-major (token, column) pairs, others rows.")

    expert_offsets = _Tensor("[L + 1] int64 first row of each expert's group; None for token-major.")

    row_source = _Tensor("[rows] int32 source rank of each row, -1 = none.")

    row_token = _Tensor("[rows] int32 token index in its source, -1 = none.")

    layout_range = _Tensor("Slab [L, R] int64: count in the low 32 bits, first place in the high 32.")

    @property
    def masked(self) -> list[int]:
        """Sources whose part is missing."""
        return self._core.masked

    @property
    def num_dropped(self) -> int:
        """Rows past the capacity, which are nowhere."""
        return self._core.num_dropped

    @property
    def counts(self) -> list[int]:
        """Of exact sizes num_per_expert, which the host knows as soon as them; else empty."""
        return self._core.counts

    @property
    def num_rows(self) -> int:
        """Rows of x that hold tokens or lie in gaps between groups."""
        return self._core.num_rows

    @property
    def handle(self) -> Handle:
        """For combine(), and for dispatching along the same route again."""
        return Handle(self._core.handle, self._torch)

    dropped = _Tensor("[1] int64, num_dropped, also where the host does not know it.")

    def tensors(self) -> list[Array | None]:
        """All of them."""
        names = "x scales ids weights num_per_expert expert_offsets row_source row_token layout_range dropped".split()
        return [getattr(self, name) for name in names]

    def __repr__(self) -> str:
        return f"Received(x={self._core.x_says}, num_rows={self.num_rows}, masked={self.masked})"


class Combined:
    """What a combine brings back for this rank's T tokens."""

    def __init__(self, core: _core.Combined, torch: bool, out: Array | None) -> None:
        self._core = core
        self._torch = torch
        self._out = out

    @once
    def x(self) -> Array:
        """[T, H]; the caller's `out` if one was given."""
        return self._core.x(self._torch) if self._out is None else self._out

    @property
    def x_dtype(self) -> str:
        """Name of x's element type."""
        return self._core.x_dtype

    @once
    def weights(self) -> Array | None:
        """[T, K] float32 if row_weights were given."""
        return self._core.weights(self._torch)

    @property
    def masked(self) -> list[int]:
        """Owners whose part is missing: the sum is not complete if there are any."""
        return self._core.masked

    def tensors(self) -> list[Array | None]:
        """All of them."""
        return [self.x, self.weights]

    def __repr__(self) -> str:
        return f"Combined(x={self._core.x_says}, masked={self.masked})"


class Split(Generic[Result]):
    """A call that has sent and has yet to receive. `result` holds memory that is valid after receive().

    Keeps the inputs alive until then; do not write to them before.
    """

    def __init__(
        self, core: Any, result: Result, buffer: _core.Buffer, join: Callable[[Any], None] | None = None
    ) -> None:
        self._core = core
        self._buffer = buffer
        self._join = join
        self.result = result

    def receive(self) -> Result:
        """Waits for the rows and returns `result`. Any thread may call it; a second call does nothing. On a GPU the
        rows are received on the stream of the send, which torch's current stream then waits for."""
        self._core.receive(self._buffer)
        if self._join is not None:
            self._join(self.result)
        return self.result
