"""HEDDLE_TEST_DEVICE=cuda: the robustness cases (test_cases_*.py) on GPUs."""

from __future__ import annotations

import os

import heddle
import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cpu_only(why): a case that has no form on GPUs")


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = os.environ.get("HEDDLE_TEST_DEVICE") == "cuda"
    if not on_gpu or not request.module.__name__.startswith("test_cases_"):
        return
    if problem := heddle._core.cuda_problem():
        pytest.skip(problem)
    if only := request.node.get_closest_marker("cpu_only"):
        pytest.skip(only.args[0])
    import gpu_form

    monkeypatch.setattr(heddle, "Buffer", gpu_form.Buffer)
