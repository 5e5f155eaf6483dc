"""The command deep_ep_conformance: pytest of this folder, with all of its options."""

import sys
from pathlib import Path

import pytest


def main() -> None:
    sys.exit(pytest.main(["-p", "no:cacheprovider", str(Path(__file__).parent), *sys.argv[1:]]))
