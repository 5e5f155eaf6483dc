#!/usr/bin/env python3
"""Lists the CUDA kernels inside built files (object, archive, library, cubin), one 'sm_XX name' a line.

With --expect LIST (a kernel name a line, # for comments) exits 1 if a kernel is missing for one of --gpus. A GPU runs
the code of the newest architecture of its generation that is not newer than itself: sm_89 that of sm_80.
Device code must not be compressed (nvcc --no-compress, which HEDDLE_TESTS sets): then each cubin is a plain ELF file.
"""

import argparse
import re
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

EM_CUDA = 190
# A kernel is a global function whose symbol is marked as an entry (0x10); a device function is not.
KERNEL = re.compile(r"\bFUNC\s+GLOBAL\s+\S+\s+\[<other>: 1.\]\s+\d+\s+(\S+)$", re.M)


def cubins_in(image):
    """Yields (architecture, bytes from the cubin's start) for each cubin embedded in `image`."""
    for match in re.finditer(b"\x7fELF", image):
        start = match.start()
        if len(image) - start < 64 or struct.unpack_from("<H", image, start + 18)[0] != EM_CUDA:
            continue
        flags = struct.unpack_from("<I", image, start + 48)[0]
        abi = image[start + 8]
        yield (flags >> 8 if abi >= 8 else flags) & 0xFF, image[start:]


def kernels_of(cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        symbols = subprocess.run(["readelf", "-sW", file.name], capture_output=True, text=True, check=True).stdout
    return set(KERNEL.findall(symbols))


def kernels_by_architecture(paths):
    found = defaultdict(set)
    for path in paths:
        for architecture, cubin in cubins_in(Path(path).read_bytes()):
            found[architecture] |= kernels_of(cubin)
    return found


def architecture_for(gpu, architectures):
    """Whose code a GPU runs; None: nobody's."""
    return max((one for one in architectures if one <= gpu and one // 10 == gpu // 10), default=None)


def names_in(listing):
    lines = (line.split("#")[0].strip() for line in Path(listing).read_text().splitlines())
    return [line for line in lines if line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--expect", metavar="LIST")
    parser.add_argument("--gpus", type=int, nargs="+", default=[80, 86, 89, 90, 100, 103, 120, 121], metavar="SM")
    arguments = parser.parse_args()

    found = kernels_by_architecture(arguments.files)
    if not found:
        sys.exit("list_kernels: no device code, or compressed (build with nvcc --no-compress)")
    for architecture in sorted(found):
        for name in sorted(found[architecture]):
            print(f"sm_{architecture} {name}")
    if not arguments.expect:
        return
    expected = names_in(arguments.expect)
    code = {gpu: architecture_for(gpu, found) for gpu in arguments.gpus}
    missing = [f"sm_{gpu} {name}" for gpu in code for name in expected if name not in found.get(code[gpu], ())]
    if missing or not expected:
        sys.exit(f"list_kernels: {len(expected)} kernels expected, missing: {', '.join(missing) or 'none'}")
    served = ", ".join(f"sm_{gpu}" if one == gpu else f"sm_{gpu} (sm_{one}'s)" for gpu, one in code.items())
    print(f"all {len(expected)} kernels of {arguments.expect} exist for {served}")


if __name__ == "__main__":
    main()
