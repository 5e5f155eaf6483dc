"""Which experts the tokens choose. Every rank can compute every rank's choices, so nothing has to be sent to check."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import UsageError
from .options import Options

_CHUNK = 4096  # tokens at a time: a key for each (token, expert)


def resolve(options: Options) -> Options:
    """Options whose tokens and topk are those of the routing file, if one is named."""
    if not options.routing.endswith(".npz"):
        _scores(options)
        return options
    ids = _load(options.routing)
    if ids.shape[0] != options.ranks:
        raise UsageError(f"routing: {options.routing} has ids of {ids.shape[0]} ranks, legal: {options.ranks}")
    if ids.size and not (-1 <= ids.min() and ids.max() < options.experts):
        raise UsageError(
            f"routing: {options.routing} has ids {ids.min()} to {ids.max()}, legal: -1 to {options.experts - 1}"
        )
    return replace(options, tokens=ids.shape[1], topk=ids.shape[2])


def ids_of(options: Options, rank: int) -> np.ndarray:
    """[tokens, topk] int64 expert ids of a rank; distinct in a row unless they come from a file."""
    if options.routing.endswith(".npz"):
        return np.ascontiguousarray(_load(options.routing)[rank], np.int64)
    rng = np.random.default_rng([options.seed, rank])
    scores = _scores(options)
    parts = [_choose(rng, scores, min(_CHUNK, options.tokens - at), options) for at in range(0, options.tokens, _CHUNK)]
    return np.concatenate(parts) if parts else np.empty((0, options.topk), np.int64)


def _choose(rng: np.random.Generator, scores: np.ndarray, tokens: int, options: Options) -> np.ndarray:
    """The topk of score + Gumbel noise: a draw without replacement with probabilities exp(score)."""
    noise = -np.log(rng.standard_exponential((tokens, options.experts), np.float32))
    keys = scores + noise
    if options.topk == options.experts:
        return np.argsort(-keys, axis=1)
    return np.argpartition(-keys, options.topk - 1, axis=1)[:, : options.topk]


def _scores(options: Options) -> np.ndarray:
    """Log-probability of each expert, but for a constant."""
    kind, _, parameter = options.routing.partition(":")
    try:
        if kind == "uniform" and not parameter:
            return np.zeros(options.experts, np.float32)
        if kind == "zipf":
            order = np.random.default_rng(options.seed).permutation(options.experts)
            return (-float(parameter) * np.log1p(order)).astype(np.float32)
        if kind == "hot":
            hot = int(parameter)
            if 1 <= hot <= options.experts:
                return np.where(np.arange(options.experts) < hot, 1e6, 0).astype(np.float32)
    except ValueError:
        pass
    raise UsageError(
        f"routing is '{options.routing}', legal: uniform, zipf:A (probabilities 1 / rank^A), hot:N (the first N "
        f"experts, 1 to {options.experts}), or a file.npz with ids [ranks, tokens, topk]"
    )


def _load(path: str) -> np.ndarray:
    try:
        with np.load(path) as file:
            ids = file["ids"]
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"routing: {path} cannot be read: {error}; legal: an .npz file with ids") from error
    if ids.ndim != 3 or ids.dtype.kind not in "iu":
        raise UsageError(f"routing: ids is {ids.dtype} {list(ids.shape)}, legal: integers [ranks, tokens, topk]")
    return ids
