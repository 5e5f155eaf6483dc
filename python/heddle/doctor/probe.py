"""All that the doctor asks of the machine. Tests put a machine of their own in its place."""

from __future__ import annotations

import os
import subprocess
from importlib import metadata


class Probe:
    def text(self, path: str) -> str | None:
        """Contents of a file, or None."""
        try:
            with open(path) as file:
                return file.read()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """Entries of a folder, sorted; none if it does not exist."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def run(self, *command: str) -> str | None:
        """What a command printed, or None if there is no such command or it failed."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def version(self, package: str) -> str | None:
        """Version of an installed Python package, without importing it."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def cores(self) -> list[int]:
        """Cores that this process may use."""
        return sorted(os.sched_getaffinity(0))
