#!/usr/bin/env python3
"""Checks the include direction between the layers of src/ and that public headers stand alone.

check_layers.py [ROOT]   prints one line a fault, file:line: why; exits 1 if there is any.
"""

import re
import sys
from pathlib import Path

CORE = {"base", "layout", "device"}
HOSTS = {"memory", "bootstrap", "transport"}
BELOW = {  # what a layer may include, besides itself
    "base": set(),
    "layout": {"base"},
    "device": {"base", "layout"},
    "spec": {"base", "layout"},
    "placement": {"base", "layout"},
    "metrics": CORE,
    "bootstrap": CORE,
    "memory": CORE | {"bootstrap"},
    "transport": CORE | {"bootstrap", "memory"},
    "protocol": CORE,
    "cpu": CORE | HOSTS | {"protocol", "metrics"},
    "cuda": CORE | HOSTS | {"protocol", "metrics"},
}
BELOW["ops"] = set(BELOW) - {"spec"}

FOREIGN = re.compile(r"(torch|ATen|c10|pybind11|nanobind|dlpack)/|(Python|dlpack)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".hpp", ".cpp", ".cuh", ".cu"}


def includes_of(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def fault_in_source(layer, quote, header):
    """Why a file of `layer` may not include `header`, or None."""
    if FOREIGN.match(header):
        return f"{header} belongs above src/, in python/"
    if quote == "<":
        return None
    target = header.split("/")[0]
    if target not in BELOW:
        return f'"{header}" is not relative to src/: legal first folders are {", ".join(sorted(BELOW))}'
    if target != layer and target not in BELOW[layer]:
        legal = ", ".join(sorted(BELOW[layer])) or "nothing"
        return f'{layer} includes "{header}"; {layer} may include {legal}'
    return None


def fault_in_public(quote, header):
    """Why a public header may not include `header`, or None."""
    if quote == '"':
        return f'"{header}": a public header includes <heddle/x.hpp>, the standard library and fmt only'
    if FOREIGN.match(header):
        return f"{header} belongs in python/"
    return None


def faults(root):
    for path in sorted(p for p in (root / "src").rglob("*") if p.suffix in SOURCES):
        layer = path.relative_to(root / "src").parts[0]
        if layer not in BELOW:
            yield f"{path.relative_to(root)}: unknown layer {layer}; add it to scripts/check_layers.py"
            continue
        for number, quote, header in includes_of(path):
            if why := fault_in_source(layer, quote, header):
                yield f"{path.relative_to(root)}:{number}: {why}"
    for path in sorted((root / "include").rglob("*.hpp")):
        for number, quote, header in includes_of(path):
            if why := fault_in_public(quote, header):
                yield f"{path.relative_to(root)}:{number}: {why}"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = list(faults(root))
    print("\n".join(found) or "layers: every include points downward")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
