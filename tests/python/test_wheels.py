"""What is installed: wheels of heddle, of the drop-in, and of the suite that tests it, each with what is its own."""

import importlib.metadata as metadata
import subprocess
import sys

import pytest


def distribution(name):
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} was not installed from a wheel (scripts/install)")


def files_of(name):
    return {str(path) for path in distribution(name).files}


def folders_of(name):
    return {path.split("/")[0] for path in files_of(name) if ".." not in path and ".dist-info" not in path}


def test_the_drop_in_is_a_wheel_of_its_own():
    assert "heddle" in folders_of("heddle") and "deep_ep" not in folders_of("heddle")
    assert folders_of("heddle-deep-ep") == {"deep_ep", "deep_ep_cpp"}


def test_it_asks_for_the_heddle_that_it_was_built_for():
    version = distribution("heddle").version
    assert distribution("heddle-deep-ep").version == version
    assert f"heddle=={version}" in distribution("heddle-deep-ep").requires


def test_heddle_runs_where_the_c_library_is_old_enough():
    tags = distribution("heddle").read_text("WHEEL")
    assert "manylinux_2_" in tags, tags
    if sys.version_info >= (3, 12):
        assert "cp312-abi3" in tags, tags


def test_the_suite_runs_by_its_command():
    assert "deep_ep_conformance/test_names.py" in files_of("deep-ep-conformance")
    command = [sys.executable, "-c", "from deep_ep_conformance.command import main; main()"]
    done = subprocess.run(
        [*command, "--api", "names", "--ranks", "1", "-k", "signature"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and "names, signatures, defaults" in done.stdout, done.stdout + done.stderr
