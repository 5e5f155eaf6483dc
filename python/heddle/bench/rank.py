"""What one rank of a benchmark does, and what it reports."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .. import frameworks
from ..bootstrap import Bootstrap
from ..buffer import Buffer
from ..results import Received
from . import floor
from .check import check_combine, check_dispatch, expert_rows
from .expect import Arrivals, World, weights_of
from .memory import held_bytes
from .options import Options
from .payload import Payload
from .spec_check import check_against_spec

Say = Callable[[str], None]
Result = TypeVar("Result")


class Rank:
    """One rank's data and its end of the buffer."""

    def __init__(self, options: Options, bootstrap: Bootstrap, say: Say) -> None:
        self.options = options
        self.bootstrap = bootstrap
        self.say = say
        self.rank = bootstrap.rank
        self.world = World(options)
        self.payload = Payload(options, self.world.most_sum())
        self.arrivals = Arrivals(self.world, self.rank)
        own = self.rank * options.tokens + np.arange(options.tokens)
        self.x = self.payload.sent.rows(own)
        scales = self.payload.scales if options.sends_fp8 else None
        self.scales = scales.rows(own) if scales else None
        self.weights = weights_of(options) if options.is_slab else None
        self.ids = self.world.ids[self.rank]
        self.results: np.ndarray | None = None  # the experts' output, where it is not the received rows themselves
        self.times: dict[str, list[int]] = {"plan": [], "dispatch": [], "combine": []}
        self.buffer = Buffer(
            bootstrap,
            experts=options.experts,
            max_tokens=options.tokens,
            window_bytes=options.window_bytes,
            heap_bytes=options.heap_bytes,
            timeout=options.timeout,
            threads=options.threads,
        )

    def run(self) -> dict[str, Any]:
        """Everything in order; the report of this rank."""
        checked: dict[str, int] = {}
        if self.options.verify:
            self.say("compare a small call with the spec")
            checked["bytes against the spec"] = check_against_spec(self.bootstrap, self.options)
            checked["elements against NumPy"] = self.verify("first")
        for _ in range(self.options.warmup):
            self.say("warm up")
            self.iterate()
        for times in self.times.values():
            times.clear()
        before = self.buffer.metrics()
        floors: dict[str, dict[str, list[int]]] = {}
        for i in range(self.options.iterations):
            self.say(f"iteration {i + 1} of {self.options.iterations}")
            last = i + 1 == self.options.iterations
            floors = self.iterate(then=self.measure_floors if last else None)
        after = self.buffer.metrics()
        if self.options.verify:
            checked["elements against NumPy"] += self.verify("last")
        self.bootstrap.barrier("done")
        held = held_bytes()
        self.bootstrap.barrier("measured")
        self.buffer.destroy()
        return {
            "times": self.times,
            "floors": floors,
            "checked": checked,
            "wire_bytes": {
                name: (getattr(after, name).bytes_sent - getattr(before, name).bytes_sent) // self.options.iterations
                for name in ("dispatch", "combine")
            },
            "rows_sent": self.world.rows_sent(self.rank),
            "rows_received": self.rows_received(),
            "held_bytes": held,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def rows_received(self) -> int:
        return int(sum(self.world.in_rank(source)[:, self.rank].sum() for source in range(self.options.ranks)))

    def dispatch(self, plan: Any) -> Received:
        options = self.options
        return self.buffer.dispatch(
            plan,
            self.x,
            scales=self.scales,
            weights=self.weights,
            dtype="float8_e4m3fn" if options.sends_fp8 else "bfloat16",
            layout=options.layout,
            quantise=options.quantise,
        )

    def combine(self, received: Received, y: frameworks.Array) -> Any:
        return self.buffer.combine(received.handle, y, dtype="bfloat16", weighted=self.options.is_slab)

    def iterate(self, then: Callable[[Received], Any] | None = None) -> Any:
        """One round. What it received is gone when it returns, so that the next one's takes the same memory."""
        plan = self.timed("plan", lambda: self.buffer.plan(self.ids))
        received = self.timed("dispatch", lambda: self.dispatch(plan))
        y = self.rows_to_combine(received)
        self.timed("combine", lambda: self.combine(received, y))
        return then(received) if then else None

    def timed(self, name: str, call: Callable[[], Result]) -> Result:
        self.bootstrap.barrier(name)
        begin = time.perf_counter_ns()
        result = call()
        self.times[name].append(time.perf_counter_ns() - begin)
        return result

    def rows_to_combine(self, received: Received) -> np.ndarray:
        """bfloat16 rows come back as they are; float8 rows have bfloat16 results, made once."""
        if self.options.dtype == "bf16":
            return received.x
        if self.results is None:
            self.results = np.empty(received.x.shape, np.uint16)
            expert_rows(self.arrivals, self.payload, self.results.reshape(-1, self.options.hidden))
        return self.results

    def verify(self, which: str) -> int:
        """One call outside of the timed ones, every element of it checked."""
        self.say(f"check the {which} call")
        received = self.dispatch(self.buffer.plan(self.ids))
        checked = check_dispatch(self.world, self.rank, self.arrivals, self.payload, received)
        y = self.rows_to_combine(received)
        if self.options.dtype == "bf16":
            expert_rows(self.arrivals, self.payload, y.reshape(-1, self.options.hidden))
        combined = self.combine(received, y)
        return checked + check_combine(self.world, self.rank, self.payload, combined)

    def measure_floors(self, received: Received) -> dict[str, dict[str, list[int]]]:
        self.say("measure the floor")
        sent, arrived = self.world.rows_sent(self.rank), self.rows_received()
        rows = received.x if received.x.size else self.x
        source = self.x if self.x.size else rows
        if not source.size:
            return {}
        there, back = self.options.wire_row_bytes, self.options.result_row_bytes
        return {
            "dispatch": floor.measure(self.bootstrap, source, rows, sent * there, arrived * there),
            "combine": floor.measure(self.bootstrap, rows, source.copy(), arrived * back, sent * back),
        }
