"""Threads that outlive their script: they are named, waited for, and ended with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, queue, sys, threading, time
from elasticd.worker.left_threads import Patience, at_script_end, watch

LIMIT_S, FAILED = float(sys.argv[2]), sys.argv[3] == "failed"

def polls():
    while True:
        time.sleep(0.01)

def blocks():
    queue.Queue().get()

def uploads():
    time.sleep(0.5)
    print("uploaded", flush=True)

patience = Patience(0.2, LIMIT_S, 1.0 if sys.argv[1] == "blocks" else 60.0)
watch(patience, lambda text: print("event:", text, flush=True), lambda: FAILED)
at_script_end(lambda: print("the script is over", flush=True))
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
child.start()
child.join()
threading.Thread(target=globals()[sys.argv[1]], name="mine").start()
sys.exit(3)
"""
END = "the script has come to its end, but not its thread 'mine' (in {}, <string>:{}): the worker waits for that, at most "


def run(thread: str, limit_s: float, failed: str = "") -> tuple[int, list[str], list[str]]:
    """Exit code, output lines and log lines."""
    command = [sys.executable, "-c", SCRIPT, thread, str(limit_s), failed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def test_a_thread_that_is_still_writing_is_waited_for_and_named() -> None:
    code, printed, said = run("uploads", 60.0)
    sentence = END.format("uploads", 15) + "1m00s from the end on (pause_timeout)"
    assert (code, said) == (3, [sentence])
    assert printed == ["the script is over", f"event: {sentence}", "uploaded"], "and no word of the forked process"


def test_a_thread_that_loops_for_ever_is_asked_to_end_and_the_exit_code_is_the_scripts() -> None:
    code, _, said = run("polls", 0.4)
    assert code == 3
    assert len(said) == 2
    assert "thread 'mine' (in polls, " in said[1]
    assert said[1].endswith("has not ended within 0s of the script's end: it is asked to (SystemExit)")


@pytest.mark.parametrize(("failed", "code"), [("", 0), ("failed", 1)])
def test_the_process_ends_without_a_thread_that_does_not_obey(failed: str, code: int) -> None:
    found, _, said = run("blocks", 0.4, failed)
    assert found == code
    assert said[-1].startswith("the worker ends without its thread 'mine' (in blocks, <string>:12): what that has not")
