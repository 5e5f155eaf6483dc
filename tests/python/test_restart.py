"""torchrun restarts all ranks after one has failed: new processes, the same environment, and nothing stale."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("deep_ep")


@pytest.mark.parametrize("meets_by", ["store", "group"])
def test_ranks_that_are_started_again_find_one_another(meets_by):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    program = str(Path(__file__).parent / "restarted.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HEDDLE_DEEP_EP_TIMEOUT": "30"}
    done = subprocess.run([*torchrun, program, meets_by], capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 went through attempt 1" in done.stdout and "rank 1 went through attempt 1" in done.stdout
    assert "attempt 0" not in done.stdout
