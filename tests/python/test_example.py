"""examples/train_tiny_moe.py: it runs, what it checks holds, and its checks notice what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, EXAMPLES / "train_tiny_moe.py", *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=110)


def test_training_through_heddle_is_the_dense_training(tmp_path):
    pytest.importorskip("matplotlib")
    done = run("--steps", 20, "--plot", tmp_path / "losses.png")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first 20 steps: |loss - dense loss|" in done.stdout and "FAILED" not in done.stdout
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")


def test_ranks_may_have_unequal_shares():
    """3 ranks hold 2, 3 and 3 experts, and as many sequences."""
    done = run("--ranks", 3, "--steps", 3)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_argument_names_the_legal_ones():
    done = run("--ranks", 9)
    assert done.returncode == 2 and "--ranks is 9, legal: 1 to 8" in done.stderr


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_tiny_moe

    return train_tiny_moe


def failed_checks(example, record, dense, size):
    """By name. Two steps on a few bytes teach nothing, so whether the loss fell is not looked at."""
    nothing_sent = example.Traffic(size.experts, 0, 0, 0, 0.0)
    checks = example.compare([(record, nothing_sent)], dense, size, 1)
    return [check.name for check in checks if not check.passed and check.name != "last loss / first loss"]


def test_the_checks_notice_a_wrong_gradient_of_one_expert(example):
    size = example.Size(sequences=2, length=8)
    dense, wrong = (example.train_alone(size, 2, 1) for _ in range(2))
    assert failed_checks(example, wrong, dense, size) == []
    wrong.gradients[1]["layers.1.moe.experts.down"][3] *= 1.001
    assert failed_checks(example, wrong, dense, size) == ["step 2: error of gradients"]
