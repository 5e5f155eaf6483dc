"""A small call, byte for byte against the spec: the meaning of dispatch and combine for the whole world at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import _core
from ..arguments import dispatch_options
from ..bootstrap import Bootstrap
from ..buffer import Buffer
from ..results import Received
from .check import WrongResult
from .options import Options
from .routing import ids_of

spec = _core.spec

_TOKENS = 16
_HIDDEN = 256


def small(options: Options) -> Options:
    """The same call with few tokens and columns. A routing file has its own sizes, so ids are uniform."""
    routing = "uniform" if options.routing.endswith(".npz") else options.routing
    return replace(options, tokens=min(options.tokens, _TOKENS), hidden=_HIDDEN, routing=routing, window_bytes=0)


def check_against_spec(bootstrap: Bootstrap, options: Options) -> int:
    """Number of bytes that were compared. Collective. Raises WrongResult."""
    options = small(options)
    rows = [_rows_of(options, rank) for rank in range(options.ranks)]
    scales = [_scales_of(options, rank) for rank in range(options.ranks)]
    weights = [_weights_of(options, rank) for rank in range(options.ranks)]
    world = _world(options, rows, scales, weights)
    chosen: dict[str, Any] = {"layout": options.layout, "quantise": options.quantise}
    if options.is_slab:
        chosen["max_tokens"] = options.tokens
    expected = spec.dispatch(world, dispatch_options(**chosen))
    results = [_results_of(options, one.rows, rank) for rank, one in enumerate(expected)]
    mode = spec.CombineMode(in_dtype="bfloat16", wire_dtype="bfloat16", out_dtype="bfloat16", weighted=options.is_slab)
    sums = spec.combine(world, expected, results, mode)
    with Buffer(bootstrap, experts=options.experts, max_tokens=options.tokens, timeout=options.timeout) as buffer:
        rank = buffer.rank
        received = buffer.dispatch(
            buffer.plan(ids_of(options, rank)), rows[rank], scales=scales[rank], weights=weights[rank],
            dtype=None if options.sends_fp8 else "bfloat16", **chosen,
        )  # fmt: skip
        y = results[rank].reshape(*received.x.shape[:-1], options.hidden)
        combined = buffer.combine(received.handle, y, dtype="bfloat16", weighted=options.is_slab)
        bootstrap.barrier("comparing with the spec")
    return _compare(received, expected[rank]) + _same("sums", combined.x, sums[rank].x)


def _rng(options: Options, rank: int) -> np.random.Generator:
    return np.random.default_rng([options.seed, rank, 7])


def _bf16(rng: np.random.Generator, rows: int, hidden: int) -> np.ndarray:
    return (rng.standard_normal((rows, hidden), np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _rows_of(options: Options, rank: int) -> np.ndarray:
    rng = _rng(options, rank)
    if options.sends_fp8:
        return rng.integers(0, 256, (options.tokens, options.hidden), np.uint8)
    return _bf16(rng, options.tokens, options.hidden)


def _scales_of(options: Options, rank: int) -> np.ndarray | None:
    return _rng(options, rank).random((options.tokens, options.num_scales), np.float32) if options.sends_fp8 else None


def _weights_of(options: Options, rank: int) -> np.ndarray:
    return _rng(options, rank).random((options.tokens, options.topk), np.float32)


def _results_of(options: Options, rows: int, rank: int) -> np.ndarray:
    """The experts' output, flat."""
    return _bf16(np.random.default_rng([options.seed, rank, 8]), rows, options.hidden).reshape(-1)


def _world(options: Options, rows: list, scales: list, weights: list) -> spec.World:
    batches = [
        spec.Batch(
            tokens=options.tokens,
            rows=rows[rank],
            scales=None if scales[rank] is None else scales[rank].view(np.uint32),
            ids=ids_of(options, rank).astype(np.int32),
            rank_map=None,
            weights=weights[rank],
        )
        for rank in range(options.ranks)
    ]
    return spec.World(
        experts=options.experts, topk=options.topk, hidden=options.hidden,
        row_bytes=options.hidden * (1 if options.sends_fp8 else 2),
        scale_words=options.num_scales if options.sends_fp8 else 0, batches=batches,
    )  # fmt: skip


def _compare(received: Received, expected: Any) -> int:
    """Rows that hold a token, and the tables beside them."""
    live = np.flatnonzero(expected.row_source >= 0)
    x = received.x.reshape(-1, received.x.shape[-1]).view(np.uint8)
    total = _same("rows", x[live], expected.x.reshape(x.shape)[live])
    total += _same("row_source", received.row_source.reshape(-1)[live], expected.row_source[live])
    total += _same("row_token", received.row_token.reshape(-1)[live], expected.row_token[live])
    total += _same("num_per_expert", received.num_per_expert, expected.counts)
    if received.ids is not None:
        total += _same("ids", received.ids, expected.ids)
    own_weights: Any = received.weights
    own_weights = own_weights.reshape(-1)
    wanted = expected.row_weights if len(expected.row_weights) else expected.weights
    if len(wanted) == expected.rows:
        own_weights, wanted = own_weights[live], wanted[live]
    return total + _same("weights", own_weights, wanted)


def _same(name: str, seen: Any, wanted: Any) -> int:
    mine, theirs = np.ascontiguousarray(seen).tobytes(), np.ascontiguousarray(wanted).tobytes()
    if mine != theirs:
        raise WrongResult(f"{name} of the small call are not what the spec says")
    return len(mine)
