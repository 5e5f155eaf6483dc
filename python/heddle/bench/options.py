"""What is measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UsageError

MODES = ("throughput", "latency")
DTYPES = ("bf16", "fp8")
SCALE_BLOCK = 128  # elements that share a scale


@dataclass(frozen=True)
class Options:
    ranks: int = 8
    tokens: int = 4096  # of each rank
    hidden: int = 7168  # elements
    topk: int = 8
    experts: int = 256
    mode: str = "throughput"  # token-major, exact sizes; latency: slab, fixed sizes, weighted
    routing: str = "uniform"
    dtype: str = "bf16"  # fp8: throughput sends ready rows and scales, latency quantises on the way
    verify: bool = True
    iterations: int = 5
    warmup: int = 1
    seed: int = 1
    timeout: float = 100.0  # seconds
    threads: int = 1
    window_bytes: int = 0
    heap_bytes: int = 0

    def check(self) -> None:
        for name, least, most in (
            ("ranks", 1, 128),
            ("tokens", 0, 2**20),
            ("hidden", 16, 2**20),
            ("topk", 1, 128),
            ("experts", 1, 2**16),
            ("iterations", 1, 10**6),
            ("warmup", 0, 10**6),
            ("threads", 1, 256),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"{name} is {value}, legal: {least} to {most}")
        for name, legal in (("mode", MODES), ("dtype", DTYPES)):
            if getattr(self, name) not in legal:
                raise UsageError(f"{name} is '{getattr(self, name)}', legal: {', '.join(legal)}")
        if self.topk > self.experts:
            raise UsageError(f"topk is {self.topk}, legal: 1 to the number of experts, {self.experts}")
        if self.hidden % 16:
            raise UsageError(f"hidden is {self.hidden}, legal: multiples of 16")

    @property
    def is_slab(self) -> bool:
        return self.mode == "latency"

    @property
    def layout(self) -> str:
        return "slab" if self.is_slab else "token_major"

    @property
    def quantise(self) -> str:
        return "fp8" if self.quantises else "none"

    @property
    def sends_fp8(self) -> bool:
        """The caller's rows are float8 with scales."""
        return self.dtype == "fp8" and not self.is_slab

    @property
    def quantises(self) -> bool:
        """bfloat16 rows become float8 on the way."""
        return self.dtype == "fp8" and self.is_slab

    @property
    def num_scales(self) -> int:
        return -(-self.hidden // SCALE_BLOCK) if self.dtype == "fp8" else 0

    @property
    def wire_row_bytes(self) -> int:
        """Payload of a dispatched row: elements and scales."""
        return self.hidden * (1 if self.dtype == "fp8" else 2) + 4 * self.num_scales

    @property
    def result_row_bytes(self) -> int:
        """Payload of a row on its way back: bfloat16."""
        return 2 * self.hidden

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
