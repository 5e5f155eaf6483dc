"""`import heddle` must be cheap and harmless: frameworks probe it before they fork, without a GPU, with no torch."""

import subprocess
import sys


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_needs_no_torch_and_starts_no_thread():
    program = """
import sys
sys.modules["torch"] = None  # import torch raises
before = len(__import__("os").listdir("/proc/self/task"))
import heddle
assert len(__import__("os").listdir("/proc/self/task")) == before or before == 1
assert not [name for name in sys.modules if name.startswith(("torch.", "matplotlib", "rich", "typer"))]
print(heddle.__version__)
"""
    assert run(program).strip()[0].isdigit()


def test_works_in_a_child_forked_after_the_import():
    program = """
import os, heddle, numpy as np
if os.fork() == 0:
    with heddle.Buffer(heddle.in_process(1)[0], experts=2) as buffer:
        received = buffer.dispatch(buffer.plan(np.zeros((3, 1), np.int64)), np.ones((3, 8), np.float32))
        os._exit(0 if received.num_rows == 3 else 1)
raise SystemExit(os.waitpid(-1, 0)[1])
"""
    run(program)


def test_version_is_the_projects():
    import pathlib
    import re

    import heddle

    cmake = (pathlib.Path(__file__).parents[2] / "CMakeLists.txt").read_text()
    assert re.search(r"project\(heddle VERSION ([0-9.]+)", cmake)[1] == heddle.__version__
