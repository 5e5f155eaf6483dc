"""Options, the world of ranks, and the table of capabilities at the end."""

from __future__ import annotations

import collections

import pytest
from world import World

APIS = {
    "names": "names, signatures, defaults",
    "v1": "Buffer, normal mode",
    "ll": "Buffer, low latency",
    "v2": "ElasticBuffer",
    "v25": "EPBuffer",
    "hybrid": "HybridEPBuffer",
    "utils": "deep_ep.utils",
}
_results: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)


def pytest_addoption(parser):
    group = parser.getgroup("deep_ep conformance")
    group.addoption("--device", default="cpu", choices=("cpu", "cuda"), help="where tensors live")
    group.addoption("--ranks", default=4, type=int, help="processes; some tests use fewer, none more")
    group.addoption("--api", default=",".join(APIS), help=f"what to test, of {','.join(APIS)}")


def pytest_configure(config):
    for name, what in APIS.items():
        config.addinivalue_line("markers", f"{name}: {what}")
    chosen = config.getoption("--api").split(",")
    if unknown := set(chosen) - set(APIS):
        raise pytest.UsageError(f"--api has {','.join(sorted(unknown))}, legal: {','.join(APIS)}")


def _api_of(item) -> str | None:
    return next((mark.name for mark in item.iter_markers() if mark.name in APIS), None)


def pytest_collection_modifyitems(config, items):
    chosen = set(config.getoption("--api").split(","))
    gone = [item for item in items if _api_of(item) not in chosen | {None}]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    api = _api_of(item)
    if api and (report.when == "call" or not report.passed):
        _results[api][report.outcome] += 1
    return report


def pytest_terminal_summary(terminalreporter):
    if not _results:
        return
    terminalreporter.section("deep_ep conformance")
    for api, what in APIS.items():
        seen = _results.get(api)
        if seen:
            verdict = "FAIL" if seen["failed"] else "pass"
            line = f"{what:32}{verdict:8}{seen['passed']:6} passed{seen['failed']:6} failed{seen['skipped']:6} skipped"
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def world(request):
    """The rank processes."""
    made = World(request.config.getoption("--ranks"), request.config.getoption("--device"))
    yield made
    made.stop()
