"""Network interfaces, and whether this build could use them."""

from __future__ import annotations

from collections.abc import Mapping

from .line import Line
from .probe import Probe

_NET = "/sys/class/net"
_VERBS = "/sys/class/infiniband"


def nics(probe: Probe, features: Mapping[str, bool]) -> list[Line]:
    lines = [Line("NIC", _ethernet(probe, name)) for name in probe.names(_NET) if name != "lo"]
    lines += [Line("NIC", _verbs(probe, name)) for name in probe.names(_VERBS)]
    if not lines:
        lines = [Line("NICs", "none but loopback: ranks of this host only")]
    if not features["fabric"]:
        lines.append(
            Line(
                "network", "no transport in this build", "note", "ranks of one host need none; others cannot be reached"
            )
        )
    return lines


def _ethernet(probe: Probe, name: str) -> str:
    state = (probe.text(f"{_NET}/{name}/operstate") or "unknown").strip()
    speed = (probe.text(f"{_NET}/{name}/speed") or "").strip()
    known = speed.isdigit() and int(speed) > 0
    return f"{name}: {state}" + (f", {int(speed) / 1000:g} Gb/s" if known else "")


def _verbs(probe: Probe, name: str) -> str:
    ports = probe.names(f"{_VERBS}/{name}/ports")
    rates = [(probe.text(f"{_VERBS}/{name}/ports/{port}/rate") or "unknown rate").strip() for port in ports]
    return f"{name}: RDMA, {'; '.join(rates) or 'no ports'}"
