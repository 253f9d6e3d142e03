"""A program with parallelism 2, whose TaskManagers are its children, works as with parallelism 1, in its own process.

Here: how the children end, whatever the program's functions leave behind, and what becomes of children that the program
itself has forked.
"""

import signal
from pathlib import Path

import psutil
import pytest

from tests.flowlet.client.programs import Fork, running
from tests.integration.children_programs import outcome, written
from tests.waiting import PATIENCE_S, Stopwatch

pytestmark = pytest.mark.slow


def wait_for_ends(processes: list[psutil.Process]) -> None:
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []


# ---------------------------------------------------------------- ends

HOLDS_THE_LOCK = """
def hold(number):
    os.write(1, b"holds\\n")
    ctypes.PyDLL(None).sleep(3600)

run(hold, 1)
"""
HOLDS_THE_LOCK_OF_A_THREAD_THAT_HAS_ENDED = """
def hold(number):
    os.write(1, b"holds\\n")
    ctypes.PyDLL(None).sleep(3600)

env.from_collection([1]).map(hold).print()
thread = threading.Thread(target=env.execute_async)
thread.start()
thread.join()
time.sleep(3600)
"""
FORKS_AND_HOLDS_THE_LOCK = """
def hold(number):
    if os.fork() == 0:
        os.write(1, b"holds\\n")
    ctypes.PyDLL(None).sleep(3600)

run(hold, 1)
"""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param(HOLDS_THE_LOCK, signal.SIGKILL, id="function, SIGKILL"),
        pytest.param(HOLDS_THE_LOCK_OF_A_THREAD_THAT_HAS_ENDED, signal.SIGTERM, id="job of another thread, SIGTERM"),
        pytest.param(FORKS_AND_HOLDS_THE_LOCK, signal.SIGKILL, id="child of a function, SIGKILL"),
        pytest.param(HOLDS_THE_LOCK, signal.SIGTERM, marks=pytest.mark.long, id="function, SIGTERM"),
        pytest.param(
            HOLDS_THE_LOCK_OF_A_THREAD_THAT_HAS_ENDED,
            signal.SIGKILL,
            marks=pytest.mark.long,
            id="job of another thread, SIGKILL",
        ),
        pytest.param(
            FORKS_AND_HOLDS_THE_LOCK, signal.SIGTERM, marks=pytest.mark.long, id="child of a function, SIGTERM"
        ),
    ],
)
def test_a_killed_program_takes_children_with_it_whose_functions_hold_the_interpreters_lock(
    tmp_path: Path, text: str, number: signal.Signals
) -> None:
    """The kernel ends the children: no code of ours runs there."""
    environment = {"PARALLELISM": "2"}
    with running(written(tmp_path, text), environment=environment, fork=Fork.WITH_SERVER) as program:
        program.wait_for_output("holds")
        family = psutil.Process(program.process.pid).children(recursive=True)
        program.process.send_signal(number)
        program.process.wait(PATIENCE_S)

        wait_for_ends(family)

    assert len(family) >= 2


def test_a_child_that_the_program_has_forked_does_not_keep_its_task_managers(tmp_path: Path) -> None:
    """A forked child inherits the descriptor by which the kernel tells that the program is there; the TaskManagers end
    nevertheless.
    """
    text = """
def hold(number):
    os.write(1, b"holds\\n")
    ctypes.PyDLL(None).sleep(3600)

env.from_collection([1]).map(hold).print()
env.execute_async()
if os.fork() == 0:
    while True:
        time.sleep(3600)
time.sleep(3600)
"""
    with running(written(tmp_path, text), environment={"PARALLELISM": "2"}) as program:
        program.wait_for_output("holds")
        family = psutil.Process(program.process.pid).children(recursive=True)
        forked = [each for each in family if "program.py" in " ".join(each.cmdline())]
        program.process.kill()
        program.process.wait(PATIENCE_S)

        wait_for_ends([each for each in family if each not in forked])
        for each in forked:
            each.kill()
        wait_for_ends(forked)

    assert len(family) >= 2 + len(forked)


LEAVES_POOLS = """
import work

class LeavesPools(MapFunction):
    def open(self, context):
        self.processes, self.threads = ProcessPoolExecutor(1), ThreadPoolExecutor(1)
        self.processes.submit(abs, 1).result()

    def map(self, number):
        self.processes.submit(work.note_later, sys.argv[1])
        self.threads.submit(work.note_later, sys.argv[1])
        if sys.argv[2] == "fails":
            raise ValueError("as it shall")
        if sys.argv[2] == "is interrupted":
            os.write(1, b"there\\n")
            time.sleep(3600)
        return number

run(LeavesPools(), 1)
"""
WORK = """
import time

def note_later(path):
    time.sleep(0.5)
    with open(path, "a") as file:
        file.write("done\\n")
"""


@pytest.mark.parametrize(
    ("end", "parallelism"),
    [("succeeds", 2), ("fails", 2), ("fails", 1), pytest.param("succeeds", 1, marks=pytest.mark.long)],
)
def test_what_was_submitted_to_executors_that_stay_open_is_done(tmp_path: Path, end: str, parallelism: int) -> None:
    """Executors finish their work as at the end of any Python program; no worker stays, and nobody is killed."""
    (tmp_path / "work.py").write_text(WORK)
    notes = tmp_path / "notes"

    arguments = (written(tmp_path, LEAVES_POOLS), str(notes), end)
    code, _, errors = outcome(*arguments, parallelism=parallelism, fork=Fork.WITH_SERVER)

    assert notes.read_text() == "done\ndone\n"
    assert code == (end == "fails"), errors
    assert not any("killed" in line for line in errors)


def test_what_was_submitted_is_done_after_an_interrupt(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    notes = tmp_path / "notes"

    arguments = (written(tmp_path, LEAVES_POOLS.replace("3600", "0.5")), str(notes), "is interrupted")
    with running(*arguments, environment={"PARALLELISM": "2"}, fork=Fork.WITH_SERVER) as program:
        program.wait_for_output("there")
        program.interrupt()
        program.end()

    assert notes.read_text() == "done\ndone\n"


def test_exit_functions_run_and_processes_of_multiprocessing_are_waited_for(tmp_path: Path) -> None:
    """A daemonic process is ended, one that is not is joined."""
    text = """
import atexit, multiprocessing
import work

def leave(number):
    atexit.register(work.note_later, sys.argv[1])
    multiprocessing.Process(target=work.note_later, args=(sys.argv[1],)).start()
    multiprocessing.Process(target=time.sleep, args=(3600,), daemon=True).start()
    return number

run(leave, 1)
"""
    (tmp_path / "work.py").write_text(WORK)
    notes = tmp_path / "notes"

    code, _, errors = outcome(written(tmp_path, text), str(notes), parallelism=2, fork=Fork.WITH_SERVER)

    assert (code, notes.read_text()) == (0, "done\ndone\n"), errors


def test_what_a_function_leaves_running_ends_with_its_task_manager(tmp_path: Path) -> None:
    """A process that a function leaves running ends with its TaskManager; ``program | tail`` would never end otherwise,
    as such a process has the program's standard output.
    """
    text = """
def leave(number):
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(3600)
    return number

run(leave, 1)
"""
    code, out, _ = outcome(written(tmp_path, text), parallelism=2, fork=Fork.WITH_SERVER)

    assert (code, out) == (0, ["1"])


def test_what_a_killed_task_manager_leaves_ends_too(tmp_path: Path) -> None:
    text = """
import signal

def leave(number):
    if os.fork() == 0:
        while True:
            time.sleep(3600)
    os.kill(os.getpid(), signal.SIGKILL)

run(leave, 1)
"""
    code, _, errors = outcome(written(tmp_path, text), parallelism=2, fork=Fork.WITH_SERVER)

    assert code == 1
    assert any("SIGKILL" in line for line in errors)


@pytest.mark.parametrize("limit_s", [1, pytest.param(10, marks=pytest.mark.long)])
def test_work_without_end_is_given_up_after_ten_seconds_and_named(tmp_path: Path, limit_s: int) -> None:
    """Endless work is given up after ten seconds and named; one second stands for ten of them here."""
    text = """
def leave(number):
    threading.Thread(target=time.sleep, args=(3600,), name="never ends", daemon=False).start()
    return number

run(leave, 1)
"""
    folder = tmp_path / "modules"
    folder.mkdir()
    if limit_s != 10:
        (folder / "sitecustomize.py").write_text(
            f"from flowlet.tm.process import process_model\nprocess_model.EXIT_WORK_S = {limit_s}\n"
        )
    with Stopwatch() as watch:
        code, out, errors = outcome(written(tmp_path, text), parallelism=2, PYTHONPATH=str(folder))

    assert (code, out) == (0, ["1"])
    assert watch.seconds > 0.9 * limit_s
    assert any(f"did not end within {limit_s} s, and is lost" in line and "never ends" in line for line in errors), (
        errors
    )


# ---------------------------------------------------------------- forked children of the program

FORKS = """
import multiprocessing

def fork(how):
    pid = os.fork()
    if pid == 0:
        if how == "exits":
            sys.exit(3)
        if how == "raises":
            raise ValueError("as it shall")
        os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

run(lambda number: number, 1)
print("after", fork("exits"), fork("raises"), fork("ends"), flush=True)
child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(4,))
child.start()
child.join()
print("child", child.exitcode, flush=True)
with env.from_collection([1, 2]).map(lambda number: number).execute_and_collect() as results:
    next(results)
    print("while", fork("exits"), fork("raises"), fork("ends"), flush=True)
"""


@pytest.mark.parametrize("parallelism", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_child_that_the_program_forks_ends_as_it_would_without_us(tmp_path: Path, parallelism: int) -> None:
    """A forked child exits with its own code, or shows its own error, while a job runs and afterwards; it does not
    touch its parent's job.
    """
    code, out, errors = outcome(written(tmp_path, FORKS), parallelism=parallelism)

    assert (code, out) == (0, ["1", "after 3 1 5", "child 4", "while 3 1 5"])
    assert [line for line in errors if not line.startswith((" ", "Traceback"))] == ["ValueError: as it shall"] * 2
