"""What works in a program with parallelism 1, in its own process, works with parallelism 2, in TaskManagers that are its children.

How they begin, whatever the program's folders are called and however it was started; how they end, whatever its functions leave behind.
"""

import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from tests.flowlet.client.programs import REPOSITORY, running
from tests.waiting import PATIENCE_S, Stopwatch

pytestmark = pytest.mark.slow

HEAD = """
import ctypes, os, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from flowlet.datastream import MapFunction, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(int(os.environ["PARALLELISM"]))

def run(function, *records):
    env.from_collection(list(records)).map(function).print()
    env.execute()
"""


def written(folder: Path, text: str, name: str = "program.py") -> str:
    file = folder / name
    file.write_text(HEAD + text)
    return str(file)


def lines_of(out: str) -> list[str]:
    """What was printed, without the numbers of subtasks."""
    return sorted(line.partition("> ")[2] or line for line in out.splitlines())


def outcome(*arguments: str, parallelism: int, **environment: str) -> tuple[int, list[str], list[str]]:
    with running(*arguments, environment={"PARALLELISM": str(parallelism), **environment}) as program:
        code, out, errors = program.end()
    return code, lines_of(out), errors


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
            HOLDS_THE_LOCK_OF_A_THREAD_THAT_HAS_ENDED, signal.SIGKILL, marks=pytest.mark.long, id="job of another thread, SIGKILL"
        ),
        pytest.param(FORKS_AND_HOLDS_THE_LOCK, signal.SIGTERM, marks=pytest.mark.long, id="child of a function, SIGTERM"),
    ],
)
def test_a_killed_program_takes_children_with_it_whose_functions_hold_the_interpreters_lock(
    tmp_path: Path, text: str, number: signal.Signals
) -> None:
    """The kernel ends them: no code of ours runs there."""
    with running(written(tmp_path, text), environment={"PARALLELISM": "2"}) as program:
        program.wait_for_output("holds")
        family = psutil.Process(program.process.pid).children(recursive=True)
        program.process.send_signal(number)
        program.process.wait(PATIENCE_S)

        wait_for_ends(family)

    assert len(family) >= 2


def test_a_child_that_the_program_has_forked_does_not_keep_its_task_managers(tmp_path: Path) -> None:
    """It inherits the descriptor by which the kernel tells that the program is there."""
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
    """As at the end of a program of Python; no worker stays, and nobody is killed."""
    (tmp_path / "work.py").write_text(WORK)
    notes = tmp_path / "notes"

    code, _, errors = outcome(written(tmp_path, LEAVES_POOLS), str(notes), end, parallelism=parallelism)

    assert notes.read_text() == "done\ndone\n"
    assert code == (end == "fails"), errors
    assert not any("killed" in line for line in errors)


def test_what_was_submitted_is_done_after_an_interrupt(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    notes = tmp_path / "notes"

    arguments = (written(tmp_path, LEAVES_POOLS.replace("3600", "0.5")), str(notes), "is interrupted")
    with running(*arguments, environment={"PARALLELISM": "2"}) as program:
        program.wait_for_output("there")
        program.interrupt()
        program.end()

    assert notes.read_text() == "done\ndone\n"


def test_exit_functions_run_and_processes_of_multiprocessing_are_waited_for(tmp_path: Path) -> None:
    """One that is daemonic is ended, one that is not is joined."""
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

    code, _, errors = outcome(written(tmp_path, text), str(notes), parallelism=2)

    assert (code, notes.read_text()) == (0, "done\ndone\n"), errors


def test_what_a_function_leaves_running_ends_with_its_task_manager(tmp_path: Path) -> None:
    """Or ``program | tail`` would never end: such a process has the program's standard output."""
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
    code, out, _ = outcome(written(tmp_path, text), parallelism=2)

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
    code, _, errors = outcome(written(tmp_path, text), parallelism=2)

    assert code == 1
    assert any("SIGKILL" in line for line in errors)


@pytest.mark.parametrize("limit_s", [1, pytest.param(10, marks=pytest.mark.long)])
def test_work_without_end_is_given_up_after_ten_seconds_and_named(tmp_path: Path, limit_s: int) -> None:
    """One second is ten of them here."""
    text = """
def leave(number):
    threading.Thread(target=time.sleep, args=(3600,), name="never ends", daemon=False).start()
    return number

run(leave, 1)
"""
    folder = tmp_path / "modules"
    folder.mkdir()
    if limit_s != 10:
        (folder / "sitecustomize.py").write_text(f"import flowlet.tm.process_end\nflowlet.tm.process_end.EXIT_WORK_S = {limit_s}\n")
    with Stopwatch() as watch:
        code, out, errors = outcome(written(tmp_path, text), parallelism=2, PYTHONPATH=str(folder))

    assert (code, out) == (0, ["1"])
    assert watch.seconds > 0.9 * limit_s
    assert any(f"did not end within {limit_s} s, and is lost" in line and "never ends" in line for line in errors), errors


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
    """It exits with its own code, or shows its own error, while a job runs and afterwards; it does not touch its parent's job."""
    code, out, errors = outcome(written(tmp_path, FORKS), parallelism=parallelism)

    assert (code, out) == (0, ["1", "after 3 1 5", "child 4", "while 3 1 5"])
    assert [line for line in errors if not line.startswith((" ", "Traceback"))] == ["ValueError: as it shall"] * 2


# ---------------------------------------------------------------- beginnings

SHOWS_A_MODULE = """
def show(number):
    import helper
    return helper.NAME

run(show, 1)
"""


def test_a_programs_folder_and_its_import_path_may_be_odd(tmp_path: Path) -> None:
    """Any names of folders, entries that Python ignores, and an archive whose name has a colon."""
    folder = tmp_path / "10:21:15" / "a b\nc;d:caf\udce9"
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text("NAME = 'found'")
    archive = tmp_path / "a:b.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed.py", "NAME = 'found, too'")
    text = f"""
import pathlib

sys.path[:0] = [pathlib.Path('/nowhere'), b'/nowhere', None, '', {str(archive)!r}]

def show(number):
    import helper, packed
    return helper.NAME, packed.NAME

run(show, 1)
"""
    code, out, errors = outcome(written(folder, text), parallelism=2)

    assert (code, out) == (0, ["('found', 'found, too')"]), errors


@pytest.mark.parametrize("place", ["beside", "in a folder of PYTHONPATH"])
def test_modules_may_have_the_names_of_those_that_only_a_task_manager_imports(tmp_path: Path, place: str) -> None:
    """The function gets the program's module of that name, the TaskManager the one that it needs; the program may have imported its own."""
    names = ["resource", "typer", "yaml"]
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("NAME = 'found'")
    text = f"""
{"import resource" if place == "beside" else ""}
def show(number):
    import {", ".join(names)}
    return [each.NAME for each in ({", ".join(names)})]

run(show, 1)
"""
    file = written(folder if place == "beside" else tmp_path, text)
    code, out, errors = outcome(file, parallelism=2, **({} if place == "beside" else {"PYTHONPATH": str(folder)}))

    assert (code, out) == (0, [str(["found"] * len(names))]), errors


@pytest.mark.parametrize("parallelism", [2, pytest.param(1, marks=pytest.mark.long)])
def test_functions_see_the_flags_and_the_arguments_of_the_program(tmp_path: Path, parallelism: int) -> None:
    text = """
import warnings

def show(number):
    flags = sys.flags
    return (flags.optimize, flags.dev_mode, flags.utf8_mode, flags.bytes_warning, flags.dont_write_bytecode, sys._xoptions.get("mine"),
            "once::UserWarning" in sys.warnoptions, sys.argv[1:])

run(show, 1)
"""
    flags = ["-OO", "-X", "dev", "-X", "utf8", "-X", "mine=1", "-b", "-B", "-W", "once::UserWarning"]

    code, out, errors = outcome(*flags, written(tmp_path, text), "first", "--second", parallelism=parallelism)

    assert (code, out) == (0, ["(2, True, 1, 1, 1, '1', True, ['first', '--second'])"]), errors


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_an_isolated_program_has_isolated_children(tmp_path: Path, flag: str) -> None:
    """They ignore PYTHONPATH, as the program does."""
    (tmp_path / "helper.py").write_text("NAME = 'found'")
    repository = str(Path(__file__).resolve().parents[2])
    file = tmp_path / "program.py"
    file.write_text(f"import sys\nsys.path[:0] = {[str(tmp_path), repository]!r}\n{HEAD}\n{SHOWS_A_MODULE}")

    code, out, errors = outcome(flag, str(file), parallelism=2, PYTHONOPTIMIZE="2")

    assert (code, out) == (0, ["found"]), errors


def test_a_module_that_prints_when_it_is_imported_breaks_nothing(tmp_path: Path) -> None:
    """One that every interpreter imports at its start, and one that has the name of one of ours."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in ("sitecustomize", "resource"):
        (folder / f"{name}.py").write_text(f"print('hello from {name}')\n")
    (tmp_path / "helper.py").write_text("NAME = 'found'")

    code, out, errors = outcome(written(tmp_path, SHOWS_A_MODULE), parallelism=2, PYTHONPATH=str(folder))

    assert code == 0, errors
    assert sorted(out) == ["found", *["hello from sitecustomize"] * 3]


def test_the_program_may_come_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("NAME = 'found'")

    with running("-", environment={"PARALLELISM": "2", "PYTHONPATH": str(tmp_path)}) as program:
        assert program.process.stdin is not None
        program.process.stdin.write(HEAD + SHOWS_A_MODULE)
        code, out, errors = program.end()

    assert (code, lines_of(out)) == (0, ["found"]), errors


# ---------------------------------------------------------------- standard descriptors and limits


@pytest.mark.parametrize(("closed", "parallelism"), [("<&- 2>&-", 2), ("<&- 2>&-", 1), ("2>&-", 2)])
def test_a_program_may_be_started_with_closed_standard_descriptors(tmp_path: Path, closed: str, parallelism: int) -> None:
    """It neither aborts nor ends without a word."""
    code, out, _ = in_shell(f'exec "$@" {closed}', written(tmp_path, "run(lambda number: number + 1, 1)"), parallelism)

    assert (code, lines_of("\n".join(out))) == (0, ["2"])


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", pytest.param(">&-", marks=pytest.mark.long)])
def test_a_program_may_be_started_without_standard_output(tmp_path: Path, closed: str) -> None:
    """As long as nothing is printed: what functions print could not be shown, which fails a job."""
    result = tmp_path / "result"
    text = f"""
with env.from_collection([1]).map(lambda number: number).execute_and_collect() as results:
    open({str(result)!r}, "w").write(str(list(results)))
"""
    code, _, errors = in_shell(f'exec "$@" {closed}', written(tmp_path, text), 2)

    assert (code, result.read_text()) == (0, "[1]"), errors


@pytest.mark.parametrize("parallelism", [1, 2])
def test_too_few_file_descriptors_are_an_error_that_says_how_many_are_needed(tmp_path: Path, parallelism: int) -> None:
    code, _, errors = in_shell('ulimit -n 24; exec "$@"', written(tmp_path, "run(lambda number: number, 1)"), parallelism)

    assert code == 1
    assert re.search(
        r"this process may have 24 file descriptors \(RLIMIT_NOFILE\), and \d+ are open: "
        r"a local cluster needs \d+ more; raise the limit to \d+",
        errors[-1],
    )


def in_shell(command: str, program: str, parallelism: int, *arguments: str) -> tuple[int, list[str], list[str]]:
    environment = {**os.environ, "PARALLELISM": str(parallelism), "PYTHONPATH": str(REPOSITORY)}
    environment.pop("PYTHONASYNCIODEBUG", None)
    ended = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE_S,
        check=False,
    )
    return ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines()


# ---------------------------------------------------------------- log lines

LOGS = """
import logging, structlog

SETUPS = {
    "nothing": lambda: None,
    "info": lambda: logging.basicConfig(level=logging.INFO, force=True),
    "one logger": lambda: (logging.basicConfig(force=True), logging.getLogger("mine").setLevel("DEBUG")),
    "errors": lambda: logging.basicConfig(level=logging.ERROR, force=True),
    "disabled": lambda: (logging.basicConfig(level=logging.DEBUG, force=True), logging.disable(logging.INFO)),
}
logging.getLogger("flowlet").addHandler(logging.StreamHandler())

def log(number):
    logging.getLogger("mine").debug("debug line")
    logging.getLogger("mine").info("info line")
    logging.getLogger("mine").warning("warning line")
    structlog.get_logger("mine").info("structured line")
    return number

for name in sys.argv[1:]:
    logging.root.handlers.clear()
    logging.root.setLevel("WARNING")
    logging.getLogger("mine").setLevel("NOTSET")
    SETUPS[name]()
    print("== begins", name, flush=True)
    run(log, 1)
    structlog.get_logger("mine").info("programs own line")
    print("web", [type(each).__name__ for each in logging.getLogger("aiohttp").handlers], logging.getLogger("aiohttp").level,
          logging.getLogger("aiohttp").propagate)
    print("ours", [type(each).__name__ for each in logging.getLogger("flowlet").handlers if type(each) is logging.StreamHandler])
    sys.stdout.flush()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(env.get_parallelism())
"""
LEVELS = {
    "nothing": ["warning"],
    "info": ["info", "warning"],
    "one logger": ["debug", "info", "warning"],
    "errors": [],
    "disabled": ["warning"],
}


@pytest.mark.parametrize(
    ("parallelism", "setups"),
    [
        pytest.param(1, list(LEVELS), id="in process"),
        pytest.param(2, ["nothing", "info", "one logger"], id="children"),
        pytest.param(2, ["errors", "disabled"], marks=pytest.mark.long, id="children, less"),
    ],
)
def test_functions_log_what_the_program_has_set_up(tmp_path: Path, parallelism: int, setups: list[str]) -> None:
    """Lines of structlog, which is not set up, are printed; loggers of other libraries stay as they are."""
    code, lines, _ = in_shell('exec "$@" 2>&1', written(tmp_path, LOGS), parallelism, *setups)

    assert code == 0, lines
    before, *texts = "\n".join(lines).split("== begins ")
    assert [text.partition("\n")[0] for text in texts] == setups, before
    for setup, text in zip(setups, texts, strict=True):
        assert [each for each in ("debug", "info", "warning") if f"{each} line" in text] == LEVELS[setup], text
        assert "structured line" in text
        assert "programs own line" in text
        assert "web [] 0 True" in text
        assert "ours ['StreamHandler']" in text
