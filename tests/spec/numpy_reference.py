"""What plan, dispatch and combine mean, said once more in NumPy, and compared with src/spec over random worlds.

Whole arrays where the spec loops, and its own casts and fused multiply-add: a mistake must be made twice to go unseen.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("NumPy is missing, so the spec is not compared with it; install numpy", file=sys.stderr)
    sys.exit(1 if os.environ.get("CI") else 77)

from reference.meaning import combine, dispatch, plan
from reference.worlds import add_combine_inputs, random_batches, random_case


def write_case(path, case, batches):
    def record(name, data):
        return len(name).to_bytes(4, "little") + name.encode() + len(data).to_bytes(8, "little") + data

    out = b""
    for name, value in case.items():
        array = value.astype(np.uint8) if isinstance(value, np.ndarray) else np.array([value], "<i8")
        out += record(name, array.tobytes())
    sent = ("rows", "scales", "ids", "rank_map", "outputs", "late_weights", "bias0", "bias1", "row_weights")
    for rank, batch in enumerate(batches):
        out += record(f"{rank}.tokens", np.array([len(batch["ids"])], "<i8").tobytes())
        out += record(f"{rank}.weights", batch["given_weights"].tobytes())
        out += b"".join(record(f"{rank}.{name}", batch[name].tobytes()) for name in sent if name in batch)
    path.write_bytes(out)


def read_result(path):
    data, at, result = path.read_bytes(), 0, {}

    def take(size):
        nonlocal at
        at += size
        return data[at - size : at]

    while at < len(data):
        name = take(int.from_bytes(take(4), "little")).decode()
        result[name] = take(int.from_bytes(take(8), "little"))
    return result


def difference(name, want, got):
    """None if the bytes agree."""
    if want.tobytes() == got:
        return None
    seen = np.frombuffer(got, want.dtype) if len(got) % want.itemsize == 0 else np.frombuffer(got, np.uint8)
    if seen.size != want.size:
        return f"{name} has {seen.size} elements, NumPy says {want.size}"
    raw = f"u{want.itemsize}"
    bad = np.flatnonzero(want.ravel().view(raw) != seen.view(raw))
    return (
        f"{name} differs at {bad[:5]} ({len(bad)} of {want.size}): {seen[bad[:5]]}, NumPy says {want.ravel()[bad[:5]]}"
    )


def differences(seed, dump, folder):
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    batches = random_batches(rng, case)
    received = [dispatch(case, batches, rank) for rank in range(case["ranks"])]
    add_combine_inputs(rng, case, batches, received)
    write_case(folder / "case", case, batches)
    ran = subprocess.run([dump, folder / "case", folder / "result"], capture_output=True, text=True, timeout=60)
    if ran.returncode != 0:
        return case, [f"{dump} ended with {ran.returncode}: {ran.stderr.strip()}"]
    result = read_result(folder / "result")
    found = []
    for rank in range(case["ranks"]):
        want = plan(case, batches[rank]) | received[rank] | combine(case, batches, received, rank)
        found += [difference(f"{rank}.{name}", value, result.pop(f"{rank}.{name}")) for name, value in want.items()]
    found += [f"{name} is not stated in NumPy" for name in result]
    return case, [text for text in found if text]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", required=True, help="the built heddle_spec_dump")
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.cases):
            case, found = differences(seed, options.dump, Path(folder))
            if found:
                bad += 1
                print(
                    f"seed {seed}: { {k: v for k, v in case.items() if not isinstance(v, np.ndarray)} }",
                    *found,
                    sep="\n  ",
                )
    print(f"{options.cases - bad} of {options.cases} cases agree")
    return 1 if bad or options.cases == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
