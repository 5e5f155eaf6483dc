"""What happens around a wait for another rank: Ctrl-C, other Python threads, forks."""

import os
import signal
import subprocess
import sys
import threading
import time

import heddle
import numpy as np
import pytest
import ranks

IDS = np.array([[0], [1]])
X = np.ones((2, 8), np.float32)


def pair(**settings):
    """Both ends of a buffer of two ranks that are threads."""
    return ranks.all_well(
        ranks.on_threads(2, lambda one: heddle.Buffer(one, experts=2, timeout=ranks.PATIENCE, **settings))
    )


def is_in_heddle(thread):
    """Is the thread in a call of the package?"""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_filename.startswith(os.path.dirname(heddle.__file__)):
            return True
        frame = frame.f_back
    return False


def signal_soon(number):
    """To this process, once its main thread waits."""

    def send():
        while not is_in_heddle(threading.main_thread()):
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


@pytest.fixture(autouse=True)
def interrupts_raise():
    """Whoever started the tests in the background may have had SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("threads", [1, 3])
def test_interrupt_ends_a_wait_and_reset_repairs(threads):
    zero, one = pair(threads=threads)
    signal_soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        zero.dispatch(zero.plan(IDS), X)
    with pytest.raises(heddle.FaultedError, match="interrupted while it waited for rank 1"):
        zero.dispatch(zero.plan(IDS), X)
    other = threading.Thread(target=lambda: (one.reset(), one.dispatch(one.plan(IDS), X)))
    other.start()
    zero.reset()
    assert zero.dispatch(zero.plan(IDS), X).num_rows == 2
    other.join()
    zero.destroy()
    one.destroy()


def test_interrupt_ends_a_reset_which_can_be_made_again():
    zero, one = pair()
    signal_soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        zero.reset()
    other = threading.Thread(target=one.reset)
    other.start()
    zero.reset()
    other.join()
    zero.destroy()
    one.destroy()


def test_a_signal_whose_handler_does_not_raise_only_runs_it():
    zero, one = pair()
    heard = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())
    try:
        signal_soon(signal.SIGUSR1)
        # The other comes only after the handler has run, which must be during the wait.
        other = threading.Thread(target=lambda: (heard.wait(ranks.PATIENCE), one.dispatch(one.plan(IDS), X)))
        other.start()
        assert zero.dispatch(zero.plan(IDS), X).num_rows == 2
        assert heard.is_set()
        other.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    zero.destroy()
    one.destroy()


def test_interrupt_ends_the_wait_for_a_group():
    """Rank 0 listens for a peer that never comes."""
    descriptor, port = heddle.tcp_listen()
    signal_soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        heddle.tcp(0, 2, f"127.0.0.1:{port}", "secret", timeout=5.0, listener=descriptor)


def test_other_threads_run_while_one_waits():
    zero, one = pair()
    waiting = threading.Thread(target=lambda: zero.dispatch(zero.plan(IDS), X))
    waiting.start()
    steps = 0
    for _ in range(1000):  # this thread gets the GIL while the other waits in C++
        steps += 1
    assert steps == 1000 and waiting.is_alive()
    one.dispatch(one.plan(IDS), X)
    waiting.join()
    zero.destroy()
    one.destroy()


EXIT = """
import threading
import numpy as np
import heddle

buffers = [None, None]
def build(one):
    buffers[one.rank] = heddle.Buffer(one, experts=2, timeout=1000)
threads = [threading.Thread(target=build, args=(one,)) for one in heddle.in_process(2, 30)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
plan = buffers[0].plan(np.zeros((1, 1), int))
threading.Thread(target=lambda: buffers[0].dispatch(plan, np.ones((1, 8), np.float32)), daemon=True).start()
__import__("time").sleep(0.3)
"""


def test_exit_does_not_wait_for_a_thread_that_waits():
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


FORK = """
import os, sys, threading
import numpy as np
import heddle

buffers = [None, None]
def build(one):
    buffers[one.rank] = heddle.Buffer(one, experts=2, timeout=30)
threads = [threading.Thread(target=build, args=(one,)) for one in heddle.in_process(2, 30)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
zero, one = buffers
child = os.fork()
if child == 0:
    try:
        zero.plan(np.zeros((1, 1), int))
    except heddle.UsageError as error:
        assert "built in process" in str(error) and "after fork" in str(error), error
        zero.destroy()  # nothing
        sys.exit(7)     # with all that an interpreter does when it ends
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
# The child's end took nothing from the parent.
other = threading.Thread(target=lambda: one.dispatch(one.plan(np.array([[0]])), np.ones((1, 8), np.float32)))
other.start()
assert zero.dispatch(zero.plan(np.array([[0]])), np.ones((1, 8), np.float32)).num_rows == 2
other.join()
"""


def test_a_buffer_in_a_forked_child_is_a_clear_error():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
