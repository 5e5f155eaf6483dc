"""The heddle buffers behind one buffer of deep_ep.

Heddle is told the number of experts and the device when a buffer is made, callers here tell them by the first call's
arguments: so there is a heddle.Buffer for each of them, made when it is first needed. All ranks make the same calls, so
that is collective.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import heddle
import torch
from heddle.arguments import argument_named_by

from .sizes import DEFAULT_WINDOW, LEAST_WINDOW


class Engine:
    """Heddle buffers of one group, by number of experts and device.

    window_bytes     memory that peers write to, bytes a rank and buffer; 0 = Heddle's default
    timeout          how long a call waits for a peer, seconds
    mask_late_peers  a peer that misses it is left out, instead of failing the call
    """

    def __init__(
        self, bootstrap: heddle.Bootstrap, *, window_bytes: int, timeout: float, mask_late_peers: bool = False
    ) -> None:
        self.bootstrap = bootstrap
        self.rank = bootstrap.rank
        self.size = bootstrap.size
        self._window_bytes = window_bytes and max(window_bytes, LEAST_WINDOW)
        self._timeout = timeout
        self._mask_late_peers = mask_late_peers
        self._lock = threading.Lock()
        self._current: dict[tuple[int, str], heddle.Buffer] = {}
        self._windows: dict[tuple[int, str], int] = {}
        self._ready: dict[tuple[int, torch.device, int], heddle.Buffer] = {}  # what buffer() would find
        self._all: list[heddle.Buffer] = []
        self._masked: set[int] = set()
        self._destroyed = False
        self.resets = 0
        """Handles of heddle do not survive one."""
        self.epoch = 0
        """What buffer() found is what it would find, until this changes."""

    def buffer(self, experts: int, device: torch.device, window_bytes: int = 0) -> heddle.Buffer:
        """The buffer for `experts` and tensors of `device`, with at least `window_bytes`. Collective where it has to be
        made: at the first call, and where a later one needs more memory. The older buffer stays for its handles."""
        ready = self._ready.get((experts, device, window_bytes))
        if ready is not None:
            return ready
        key = (experts, _place(device))
        with self._lock:
            self.check_alive()
            if key not in self._current or window_bytes > self._windows[key]:
                self._make(key, window_bytes)
            if device.type != "cuda" or device.index is not None:
                self._ready[experts, device, window_bytes] = self._current[key]
            return self._current[key]

    def made_buffer(self, experts: int, device: torch.device) -> heddle.Buffer | None:
        """The buffer, if there is one already. Not collective."""
        return self._current.get((experts, _place(device)))

    def any_buffer(self, device: torch.device) -> heddle.Buffer:
        """A buffer for rows that have no experts."""
        place = _place(device)
        with self._lock:
            self.check_alive()
            keys = [key for key in self._current if key[1] == place] or [(self.size, place)]
            if keys[0] not in self._current:
                self._make(keys[0], 0)
            return self._current[keys[0]]

    def _make(self, key: tuple[int, str], window_bytes: int) -> None:
        window = max(self._window_bytes, window_bytes)
        if 0 < window_bytes and self._window_bytes == 0:
            window = max(window, DEFAULT_WINDOW)
        experts, place = key
        device: dict[str, Any] = {} if place == "cpu" else {"device": place}
        buffer = heddle.Buffer(
            self.bootstrap,
            experts=experts,
            window_bytes=window,
            timeout=self._timeout,
            mask_late_peers=self._mask_late_peers,
            **device,
        )
        self._ready.clear()
        self.epoch += 1
        self._windows[key] = window or DEFAULT_WINDOW
        self._current[key] = buffer
        self._all.append(buffer)
        for rank in self._masked:
            buffer.mask(rank)

    def check_alive(self) -> None:
        """Raises DestroyedError after destroy()."""
        if self._destroyed:
            raise heddle.DestroyedError("the buffer was destroyed; make a new one")

    def mask(self, rank: int) -> None:
        self._masked.add(rank)
        for buffer in self._all:
            buffer.mask(rank)

    def masked(self) -> set[int]:
        """Ranks that are left out, by hand or because they were late."""
        return self._masked.union(*(buffer.masked() for buffer in self._all))

    def unmask(self) -> None:
        """Takes all ranks in again. Collective."""
        self.check_alive()
        self._masked.clear()
        self.resets += 1
        for buffer in self._all:
            buffer.reset()

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the buffers made so far take on this rank."""
        return sum(buffer.predicted_bytes for buffer in self._all)

    def barrier(self) -> None:
        self.check_alive()
        self.bootstrap.barrier()

    def destroy(self) -> None:
        """Local. Idempotent."""
        self._destroyed = True
        self._ready.clear()
        self.epoch += 1
        for buffer in self._all:
            buffer.destroy()
        self._current.clear()
        self._all.clear()


def _place(device: torch.device) -> str:
    """ "cpu", or "cuda:0"."""
    if device.type != "cuda":
        return "cpu"
    return f"cuda:{torch.cuda.current_device() if device.index is None else device.index}"


class telling_others:  # noqa: N801 - reads as a statement; a class enters faster than a generator, and calls are short
    """With it, an error inside makes the other ranks, which make the call, raise as well; the next call works."""

    __slots__ = ("_buffer", "_operation")

    def __init__(self, buffer: heddle.Buffer, operation: str) -> None:
        self._buffer = buffer
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not isinstance(error, Exception):
            return
        core = self._buffer._core
        refuse = core.refuse_dispatch if self._operation == "dispatch" else core.refuse_combine
        refuse(argument_named_by(error))
