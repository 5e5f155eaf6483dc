"""What plan, dispatch and combine mean, said once more in NumPy: whole arrays where src/spec loops.

`case` holds scalars and masks by name, `batches` the tensors of each rank by name.
"""

import numpy as np
from reference.elements import fma, narrow, widen
from reference.packs import UNPACKED, packed_and_back

TOKEN_MAJOR, EXPERT_MAJOR, SLAB = range(3)


def bounds(case):
    return np.arange(case["ranks"] + 1) * case["experts"] // case["ranks"]


def owners(case, ids):
    """The rank of each id, -1 for -1. Ranks without experts share their start with the next one that has some."""
    return np.where(ids < 0, -1, np.searchsorted(bounds(case), ids, side="right") - 1)


def first_columns(ids):
    """True where an id is not -1 and not among the columns before."""
    same = ids[:, :, None] == ids[:, None, :]
    return ~np.tril(same, -1).any(axis=2) & (ids >= 0)


def summed_weights(ids, weights):
    """Per column, its weight plus those of later columns of the same id, in column order."""
    total = weights.copy()
    for later in range(1, ids.shape[1]):
        for k in range(later):
            same = ids[:, later] == ids[:, k]
            total[:, k] = np.where(same, total[:, k] + weights[:, later], total[:, k])
    return total


def in_rank(case, batch):
    if case["topk"] == 0:
        return batch["rank_map"] != 0
    return (owners(case, batch["ids"])[:, :, None] == np.arange(case["ranks"])).any(axis=1)


def plan(case, batch):
    there = in_rank(case, batch)
    destination, token = np.nonzero(there.T)
    ids, first = batch["ids"], first_columns(batch["ids"])
    ordinal = np.full(ids.shape, -1)
    for expert in range(case["experts"]):
        hit = (ids == expert) & first
        ordinal[hit] = np.arange(hit.sum())
    return {
        "in_rank": there.astype(np.uint8),
        "send_offset": np.searchsorted(destination, np.arange(case["ranks"] + 1)).astype(np.int32),
        "send_tokens": token.astype(np.int32),
        "pairs_per_expert": np.bincount(ids[ids >= 0], minlength=case["experts"]).astype(np.int32),
        "rows_per_expert": np.bincount(ids[first], minlength=case["experts"]).astype(np.int32),
        "ordinal": ordinal.astype(np.int32),
    }


def gather(case, batches, rank):
    """All tokens that reach `rank`, by source, then token, and what is known of them."""
    masked = case["mask"][rank] | case["mask"][:, rank]
    masked[rank] = False
    found = [np.flatnonzero(in_rank(case, batch)[:, rank] & ~shut) for batch, shut in zip(batches, masked, strict=True)]

    def take(name):
        return np.concatenate([batch[name][tokens] for batch, tokens in zip(batches, found, strict=True)])

    return {
        "masked": masked,
        "source": np.repeat(np.arange(case["ranks"]), [len(tokens) for tokens in found]),
        "token": np.concatenate(found),
        "x": take("x"),
        "scales": take("wire_scales"),
        "ids": take("ids"),
        "weights": take("weights"),
    }


def sized(rows, size, fill):
    """The first `size` of `rows`, or all of them with `fill` behind."""
    out = np.full((size, *rows.shape[1:]), fill, rows.dtype)
    out[: min(size, len(rows))] = rows[:size]
    return out


def worst_rows(case, locals_):
    tokens, align = case["ranks"] * case["max_tokens"], case["alignment"]
    if case["layout"] == TOKEN_MAJOR:
        return tokens
    return -(-(tokens * min(case["topk"], locals_) + (align - 1) * locals_) // align) * align


def dispatch(case, batches, rank):
    got = gather(case, batches, rank)
    low, high = bounds(case)[rank : rank + 2]
    local = (got["ids"] >= low) & (got["ids"] < high)
    weights = np.where(local, got["weights"], np.float32(0))
    place = place_tokens if case["layout"] == TOKEN_MAJOR else place_hits
    out = place(case, got, high - low, np.where(local, got["ids"] - low, -1).astype(np.int32), weights)
    count = out["counts"]
    return out | {
        "aligned_counts": (-(-count // case["alignment"]) * case["alignment"]).astype(np.int32),
        "recv_offset": np.searchsorted(got["source"], np.arange(case["ranks"] + 1)).astype(np.int32),
        "recv_token": got["token"].astype(np.int32),
        "source_tokens": np.where(got["masked"], 0, [len(b["ids"]) for b in batches]).astype(np.int32),
        "recv_weights": weights,
        "status": got["masked"].astype(np.uint8),
    }


def place_tokens(case, got, locals_, ids, weights):
    n = len(ids)
    rows = case.get("capacity", worst_rows(case, locals_) if case["fixed_size"] else n)
    kept = ids[:rows]
    return {
        "num_dropped": np.array([max(0, n - rows)]),
        "x": sized(got["x"], rows, 0),
        "recv_scales": sized(got["scales"], rows, 0),
        "recv_ids": sized(ids, rows, -1),
        "row_k_weights": sized(weights, rows, 0),
        "row_weights": np.empty(0, np.float32),
        "counts": np.bincount(kept[kept >= 0], minlength=locals_).astype(np.int32),
        "expert_offsets": np.empty(0, np.int64),
        "row_source": sized(got["source"].astype(np.int32), rows, -1),
        "row_token": sized(got["token"].astype(np.int32), rows, -1),
        "layout_range": np.empty(0, np.int64),
        "row_of": np.empty(0, np.int32),
    }


def place_hits(case, got, locals_, ids, weights):
    index, k = np.nonzero(first_columns(ids))
    expert = ids[index, k]
    order = np.argsort(expert, kind="stable")
    index, k, expert = index[order], k[order], expert[order]
    count = np.bincount(expert, minlength=locals_)
    room = -(-count // case["alignment"]) * case["alignment"]
    if case["layout"] == SLAB:
        room[:] = case["ranks"] * case["max_tokens"]
    start = np.concatenate([[0], np.cumsum(room)])
    row = start[expert] + np.arange(len(expert)) - np.searchsorted(expert, expert)
    rows = start[-1]
    if case["layout"] != SLAB:
        rows = case.get("capacity", worst_rows(case, locals_) if case["fixed_size"] else rows)
    kept = row < rows

    def scatter(values, fill):
        out = np.full((rows, *values.shape[1:]), fill, values.dtype)
        out[row[kept]] = values[index[kept]]
        return out

    row_weights = np.zeros(rows, np.float32)
    row_weights[row[kept]] = summed_weights(ids, weights)[index[kept], k[kept]]
    row_of = np.full(ids.shape, -1, np.int32)
    row_of[index[kept], k[kept]] = row[kept]
    by_source = np.zeros((locals_, case["ranks"]), np.int64)
    np.add.at(by_source, (expert, got["source"][index]), 1)
    begin = np.cumsum(by_source, axis=1) - by_source
    return {
        "num_dropped": np.array([np.sum(~kept)]),
        "x": scatter(got["x"], 0),
        "recv_scales": scatter(got["scales"], 0),
        "recv_ids": np.empty(0, np.int32),
        "row_k_weights": np.empty(0, np.float32),
        "row_weights": row_weights,
        "counts": np.bincount(expert[kept], minlength=locals_).astype(np.int32),
        "expert_offsets": np.minimum(start, rows),
        "row_source": scatter(got["source"].astype(np.int32), -1),
        "row_token": scatter(got["token"].astype(np.int32), -1),
        "layout_range": begin << 32 | by_source if case["layout"] == SLAB else np.empty(0, np.int64),
        "row_of": row_of,
    }


def rows_of_tokens(case, received, source, tokens):
    """[tokens][ranks] the place among the tokens that arrived at each rank, -1 if it never came or is masked."""
    place = np.full((tokens, case["ranks"]), -1)
    for owner, at in enumerate(received):
        closed = case["combine_mask"][source, owner] or case["combine_mask"][owner, source] or at["status"][source]
        if closed and source != owner:
            continue
        begin, end = at["recv_offset"][source : source + 2]
        place[at["recv_token"][begin:end], owner] = np.arange(begin, end)
    return place


def rows_of_columns(case, batch, received, place):
    """[tokens][topk] row of outputs at the column's owner, -1 if there is none; for repeated columns the first's."""
    ids = batch["ids"]
    owner = owners(case, ids)
    rows = np.full(ids.shape, -1)
    if case["topk"] == 0:
        return owner, rows
    first = (ids[:, :, None] == ids[:, None, :]).argmax(axis=2)
    for rank, at in enumerate(received):
        token, k = np.nonzero((owner == rank) & (place[:, [rank]] >= 0))
        where = place[token, rank]
        row = where if case["layout"] == TOKEN_MAJOR else at["row_of"][where, first[token, k]]
        rows[token, k] = np.where(row < len(at["row_source"]), row, -1)
    return owner, rows


def add_rows(case, batch, outputs, owner, rows, among, total):
    """Adds the first columns in `among` to `total`, k by k. Says which tokens had any."""
    late = batch.get("late_weights", batch["weights"])
    weights = summed_weights(batch["ids"], late) if case["weighted"] else np.ones(rows.shape, np.float32)
    use = (rows >= 0) & first_columns(batch["ids"]) & among
    for k in range(rows.shape[1]):
        for rank in range(case["ranks"]):
            t = np.flatnonzero(use[:, k] & (owner[:, k] == rank))
            total[t] = fma(weights[t, k, None], outputs[rank][rows[t, k]], total[t])
    return use.any(axis=1)


def combine(case, batches, received, source):
    batch = batches[source]
    tokens = len(batch["ids"])
    place = rows_of_tokens(case, received, source, tokens)
    owner, rows = rows_of_columns(case, batch, received, place)
    outputs = [widen(b["outputs"], case["in_dtype"]) for b in batches]
    total = np.zeros((tokens, case["hidden"]), np.float32)
    for i, name in enumerate(n for n in ("bias0", "bias1") if n in batch):
        bias = widen(batch[name], case["out_dtype"])
        total = bias.copy() if i == 0 else total + bias
    if case["unreduced"]:
        if case["pack"] != UNPACKED:
            outputs = [packed_and_back(rows_there, case["pack"]) for rows_there in outputs]
        add_rows(case, batch, outputs, owner, rows, True, total)
    else:
        for rank in range(case["ranks"]):
            part = np.zeros_like(total)
            if case["layout"] == TOKEN_MAJOR:
                here = (place[:, rank] >= 0) & (place[:, rank] < len(outputs[rank]))
                part[here] = outputs[rank][place[here, rank]]
            else:
                here = add_rows(case, batch, outputs, owner, rows, owner == rank, part)
            if case["pack"] == UNPACKED:
                part = widen(narrow(part, case["wire_dtype"]), case["wire_dtype"])
            else:
                part = packed_and_back(part, case["pack"])
            total[here] += part[here]
    status = [place_status(case, received, source, peer) for peer in range(case["ranks"])]
    return {
        "combined": narrow(total, case["out_dtype"]),
        "combined_weights": returned_weights(case, batches, owner, rows),
        "combined_status": np.array(status, np.uint8),
    }


def place_status(case, received, source, peer):
    mask = case["combine_mask"]
    return source != peer and (mask[source, peer] or mask[peer, source] or received[source]["status"][peer] != 0)


def returned_weights(case, batches, owner, rows):
    if "row_weights" not in batches[0]:
        return np.empty(0, np.float32)
    out = np.zeros(rows.shape, np.float32)
    for rank, batch in enumerate(batches):
        t, k = np.nonzero((owner == rank) & (rows >= 0))
        table = batch["row_weights"]
        out[t, k] = table[rows[t, k], k] if case["layout"] == TOKEN_MAJOR else table[rows[t, k]]
    return out
