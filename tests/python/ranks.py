"""Ranks for tests: threads over heddle.in_process, or spawned processes over heddle.tcp."""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

import heddle

PATIENCE = 60.0  # seconds; only a bug reaches it


class RankError(Exception):
    """What a rank raised, where another one was expected to go well."""


def on_threads(size: int, body: Callable[[heddle.Bootstrap], Any]) -> list[Any]:
    """body(bootstrap) on `size` threads; what each returned, or the exception that it raised."""
    results: list[Any] = [None] * size

    def run(bootstrap: heddle.Bootstrap) -> None:
        try:
            results[bootstrap.rank] = body(bootstrap)
        except BaseException as error:  # pytest's own failures too
            results[bootstrap.rank] = error

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in heddle.in_process(size, PATIENCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    return results


def all_well(results: list[Any]) -> list[Any]:
    """The results, if no rank raised."""
    for rank, result in enumerate(results):
        if isinstance(result, BaseException):
            raise RankError(f"rank {rank}: {result!r}") from result
    return results


def buffers(size: int, body: Callable[[heddle.Buffer], Any], **settings: Any) -> list[Any]:
    """body(buffer) on `size` threads, each with its end of one buffer."""
    settings = {"timeout": PATIENCE, **settings}

    def run(bootstrap: heddle.Bootstrap) -> Any:
        with heddle.Buffer(bootstrap, **settings) as buffer:
            result = body(buffer)
            bootstrap.barrier("leaving together")
            return result

    return all_well(on_threads(size, run))


def _in_process(rank: int, size: int, meeting: tuple[str, str], body: Callable[..., Any], pipe: Any, args: Any) -> None:
    try:
        if os.environ.get("HEDDLE_TEST_DEVICE") == "cuda":
            import gpu_form

            gpu_form.install()
        bootstrap = heddle.tcp(rank, size, *meeting, timeout=PATIENCE)
        pipe.send((True, body(bootstrap, *args)))
    except BaseException as error:
        pipe.send((False, f"{error!r}\n{traceback.format_exc()}"))


def start_processes(size: int, body: Callable[..., Any], *args: Any) -> list[tuple[Any, Any]]:
    """Starts body(bootstrap, *args), a module's function, in `size` new processes: (process, pipe) of each."""
    context = multiprocessing.get_context("spawn")
    descriptor, port = heddle.tcp_listen()
    os.close(descriptor)
    meeting = (f"127.0.0.1:{port}", heddle.make_secret())
    started = []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_in_process, args=(rank, size, meeting, body, theirs, args), daemon=True)
        process.start()
        started.append((process, ours))
    return started


def result_of(process: Any, pipe: Any) -> Any:
    """What a started rank returned."""
    if not pipe.poll(2 * PATIENCE):
        raise RankError(f"process {process.pid} said nothing")
    well, result = pipe.recv()
    process.join(PATIENCE)
    if not well:
        raise RankError(result)
    assert process.exitcode == 0
    return result


def on_processes(size: int, body: Callable[..., Any], *args: Any) -> list[Any]:
    """body(bootstrap, *args) in `size` new processes; what each returned."""
    return [result_of(*one) for one in start_processes(size, body, *args)]
