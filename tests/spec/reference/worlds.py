"""Random worlds of all kinds: uneven experts, empty ranks, repeated experts, masks, values of very unlike size."""

import numpy as np
from reference.elements import BF16, F16, F32, FP8, FP8_POW2, FP8_UE8M0, NONE, narrow, quantise, widen
from reference.packs import PACK_FP8, PACK_LOGFMT10, UNPACKED
from reference.meaning import EXPERT_MAJOR, SLAB, TOKEN_MAJOR

RAW = {F16: np.uint16, BF16: np.uint16, F32: np.uint32}


def random_case(rng):
    def pick(*values):
        return values[rng.integers(len(values))]

    ranks = int(rng.integers(1, 6))
    case = {
        "ranks": ranks,
        "experts": int(rng.integers(1, 13)),
        "topk": pick(0, 1, 2, 3, 4, 6, 9),
        "hidden": pick(8, 16, 24, 136, 264, 520),
        "scale_words": pick(0, 0, 1, 3),
        "alignment": pick(1, 1, 4, 16),
        "fixed_size": int(rng.integers(2)),
        "quantise": pick(NONE, NONE, FP8, FP8_POW2, FP8_UE8M0),
        "in_dtype": pick(BF16, BF16, F16, F32),
        "out_dtype": pick(BF16, BF16, F16, F32),
    }
    case["layout"] = pick(TOKEN_MAJOR, EXPERT_MAJOR, SLAB) if case["topk"] else TOKEN_MAJOR
    if case["layout"] != SLAB and rng.random() < 0.3:
        case["capacity"] = int(rng.integers(0, 24))
    if case["quantise"] != NONE:
        case["scale_words"] = 0
    case["row_bytes"] = 2 * case["hidden"]
    case["wire_dtype"] = pick(case["out_dtype"], F32)
    case["pack"] = pick(UNPACKED, UNPACKED, PACK_FP8, PACK_LOGFMT10)
    case["weighted"] = int(case["layout"] != TOKEN_MAJOR and rng.random() < 0.6)
    case["unreduced"] = int(case["layout"] != TOKEN_MAJOR and rng.random() < 0.4)
    case["max_tokens"] = int(rng.integers(1, 12))
    for name in ("mask", "combine_mask"):
        case[name] = rng.random((ranks, ranks)) < pick(0, 0, 0.2)
        np.fill_diagonal(case[name], False)
    return case


def random_ids(rng, case, tokens):
    shape = (tokens, case["topk"])
    if case["topk"] == 0 or rng.random() < 0.4:  # repeats are likely
        return rng.integers(-1, case["experts"], shape).astype(np.int32)
    ids = np.array([rng.permutation(max(case["experts"], case["topk"]))[: case["topk"]] for _ in range(tokens)])
    ids = ids.reshape(shape)
    return np.where((ids < case["experts"]) & (rng.random(shape) < 0.9), ids, -1).astype(np.int32)


def random_rows(rng, shape, dtype):
    """Values of very unlike size, so that every rounding shows; few are huge, zero, or not finite."""
    values = (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 9, shape)).astype(np.float32)
    odd = rng.random(shape)
    rare = {0.0: 0.02, -1e-30: 0.015, 3e4: 0.01, np.inf: 0.0012, -np.inf: 0.0008, np.nan: 0.0004}
    for value, below in rare.items():
        values[odd < below] = value
    values[rng.random(shape) < 0.01] *= -0.0
    return narrow(values, dtype)


def random_batches(rng, case):
    ranks, topk, hidden = case["ranks"], case["topk"], case["hidden"]
    weights_given = rng.random() < 0.8
    batches = []
    for _ in range(ranks):
        tokens = 0 if rng.random() < 0.15 else int(rng.integers(0, case["max_tokens"] + 1))
        ids = random_ids(rng, case, tokens)
        weights = np.where(ids < 0, np.nan, rng.random(ids.shape)).astype(np.float32)
        rows = random_rows(rng, (tokens, hidden), BF16)
        scales = rng.integers(0, 2**32, (tokens, case["scale_words"]), np.uint32)
        x, wire_scales = rows.view(np.uint8).reshape(tokens, case["row_bytes"]), scales
        if case["quantise"] != NONE:
            x, wire_scales = quantise(widen(rows, BF16), case["quantise"])
        batches.append(
            {
                "ids": ids,
                "weights": weights if weights_given else np.zeros(ids.shape, np.float32),
                "given_weights": weights if weights_given else np.empty(0, np.float32),
                "rows": rows,
                "scales": scales,
                "x": x,
                "wire_scales": wire_scales,
                "rank_map": rng.integers(0, 2, (tokens, 0 if topk else ranks), np.uint8),
            }
        )
    return batches


def add_combine_inputs(rng, case, batches, received):
    late, biases, gradient = rng.random() < 0.3, rng.integers(3), rng.random() < 0.5
    for batch, at in zip(batches, received, strict=True):
        tokens, rows = len(batch["ids"]), len(at["row_source"])
        batch["outputs"] = random_rows(rng, (rows, case["hidden"]), case["in_dtype"])
        batch["outputs"][at["row_source"] < 0] = np.iinfo(RAW[case["in_dtype"]]).max  # NaN: nobody may read it
        if late:
            weights = rng.random(batch["ids"].shape, np.float32)
            batch["late_weights"] = np.where(batch["ids"] < 0, np.float32(np.nan), weights)
        for name in ("bias0", "bias1")[:biases]:
            batch[name] = random_rows(rng, (tokens, case["hidden"]), case["out_dtype"])
        if gradient:
            shape = (rows, case["topk"]) if case["layout"] == TOKEN_MAJOR else rows
            batch["row_weights"] = rng.standard_normal(shape).astype(np.float32)
