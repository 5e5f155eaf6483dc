"""Bytes that calls need of the memory that peers write to."""

from __future__ import annotations

import functools

MIB = 1 << 20
LEAST_WINDOW = 32 * MIB
DEFAULT_WINDOW = 256 * MIB  # heddle's

# Two kinds (dispatch, combine) in two lanes each: docs/protocol.md.
_COPIES = 4
_CONTROL = 2048  # bytes for each peer: counters, credits, offers
_HEAD = 512  # a range's header, and what aligning its parts takes


def align(value: int, to: int) -> int:
    return -(-value // to) * to


def window_for(ranks: int, range_bytes: int) -> int:
    """The window whose every (kind, lane, source) has `range_bytes`."""
    return ranks * (_CONTROL + _COPIES * align(range_bytes + _HEAD, 128)) + 4096


def dispatch_range(max_tokens: int, row_bytes: int, topk: int, ranks: int, experts: int) -> int:
    """A lane that holds a whole split dispatch of one source."""
    return 4 * (ranks + experts) + max_tokens * align(row_bytes + 4 + 12 * topk + 16, 16)


def combine_range(max_tokens: int, row_bytes: int, topk: int) -> int:
    """A lane that holds a whole split combine of one owner: a place for each (token, column)."""
    return 4 * max_tokens * topk + max_tokens * max(topk, 1) * align(row_bytes, 16)


@functools.lru_cache(maxsize=256)
def low_latency_window(max_tokens: int, hidden: int, ranks: int, experts: int, topk: int = 8) -> int:
    row_bytes = 2 * hidden
    return window_for(
        ranks,
        max(
            dispatch_range(max_tokens, row_bytes, topk, ranks, experts),
            combine_range(max_tokens, row_bytes, topk),
        ),
    )
