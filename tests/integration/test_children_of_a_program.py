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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    "text",
    [HOLDS_THE_LOCK, HOLDS_THE_LOCK_OF_A_THREAD_THAT_HAS_ENDED, FORKS_AND_HOLDS_THE_LOCK],
    ids=["function", "job of another thread", "child of a function"],
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


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("end", ["succeeds", "fails"])
def test_what_was_submitted_to_executors_that_stay_open_is_done(tmp_path: Path, parallelism: int, end: str) -> None:
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
import os
import re
import signal
import subprocess
import sys
import zipfile

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


def test_work_without_end_is_given_up_after_ten_seconds_and_named(tmp_path: Path) -> None:
    text = """
def leave(number):
    threading.Thread(target=time.sleep, args=(3600,), name="never ends", daemon=False).start()
    return number

run(leave, 1)
"""
    with Stopwatch() as watch:
        code, out, errors = outcome(written(tmp_path, text), parallelism=2)

    assert (code, out) == (0, ["1"])
    assert watch.seconds > 9
    assert any("did not end within 10 s, and is lost" in line and "never ends" in line for line in errors), errors


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


@pytest.mark.parametrize("parallelism", [1, 2])
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


@pytest.mark.parametrize("name", ["10:21:15", "a b\nc;d:caf\udce9"])
def test_a_programs_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "helper.py").write_text("NAME = 'found'")

    assert outcome(written(folder, SHOWS_A_MODULE), parallelism=2)[:2] == (0, ["found"])


def test_the_import_path_may_have_entries_that_python_ignores(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("NAME = 'found'")

    code, out, errors = outcome(
        written(tmp_path, f"import pathlib\nsys.path[:0] = [pathlib.Path('/nowhere'), b'/nowhere', None, '']\n{SHOWS_A_MODULE}"),
        parallelism=2,
    )

    assert (code, out) == (0, ["found"]), errors


def test_modules_may_lie_in_an_archive_whose_name_has_a_colon(tmp_path: Path) -> None:
    archive = tmp_path / "a:b.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("helper.py", "NAME = 'found'")

    code, out, errors = outcome(written(tmp_path, f"sys.path.insert(0, {str(archive)!r})\n{SHOWS_A_MODULE}"), parallelism=2)

    assert (code, out) == (0, ["found"]), errors


@pytest.mark.parametrize("place", ["beside", "in a folder of PYTHONPATH"])
def test_modules_may_have_the_names_of_those_that_only_a_task_manager_imports(tmp_path: Path, place: str) -> None:
    """The function gets the program's module of that name, the TaskManager the one that it needs."""
    names = ["resource", "typer", "yaml"]
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("NAME = 'found'")
    text = f"""
def show(number):
    import {", ".join(names)}
    return [each.NAME for each in ({", ".join(names)})]

run(show, 1)
"""
    file = written(folder if place == "beside" else tmp_path, text)
    code, out, errors = outcome(file, parallelism=2, **({} if place == "beside" else {"PYTHONPATH": str(folder)}))

    assert (code, out) == (0, [str(["found"] * len(names))]), errors


def test_a_module_of_that_name_may_be_imported_by_the_program(tmp_path: Path) -> None:
    (tmp_path / "resource.py").write_text("NAME = 'found'")

    code, out, errors = outcome(written(tmp_path, "import resource\nrun(lambda number: resource.NAME, 1)\n"), parallelism=2)

    assert (code, out) == (0, ["found"]), errors


@pytest.mark.parametrize("parallelism", [1, 2])
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


@pytest.mark.parametrize("name", ["sitecustomize", "resource"])
def test_a_module_that_prints_when_it_is_imported_breaks_nothing(tmp_path: Path, name: str) -> None:
    """One that every interpreter imports at its start, and one that has the name of one of ours."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{name}.py").write_text("print('hello from a module')\n")
    (tmp_path / "helper.py").write_text("NAME = 'found'")

    code, out, errors = outcome(written(tmp_path, SHOWS_A_MODULE), parallelism=2, PYTHONPATH=str(folder))

    assert code == 0, errors
    assert "found" in out
    assert out.count("hello from a module") == (0 if name == "resource" else 3)


@pytest.mark.parametrize("how", ["-c", "-m", "stdin"])
def test_it_does_not_matter_how_the_program_was_started(tmp_path: Path, how: str) -> None:
    (tmp_path / "helper.py").write_text("NAME = 'found'")
    file = written(tmp_path, SHOWS_A_MODULE, "a_program.py")
    arguments = {"-c": ("-c", Path(file).read_text()), "-m": ("-m", "a_program"), "stdin": ("-",)}[how]

    with running(*arguments, environment={"PARALLELISM": "2", "PYTHONPATH": str(tmp_path)}) as program:
        if how == "stdin":
            assert program.process.stdin is not None
            program.process.stdin.write(Path(file).read_text())
        code, out, errors = program.end()

    assert (code, lines_of(out)) == (0, ["found"]), errors


# ---------------------------------------------------------------- standard descriptors and limits


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_program_may_be_started_with_closed_standard_descriptors(tmp_path: Path, parallelism: int, closed: str) -> None:
    """It neither aborts nor ends without a word."""
    code, out, _ = in_shell(f'exec "$@" {closed}', written(tmp_path, "run(lambda number: number + 1, 1)"), parallelism)

    assert (code, lines_of("\n".join(out))) == (0, ["2"])


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
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


def in_shell(command: str, program: str, parallelism: int) -> tuple[int, list[str], list[str]]:
    environment = {**os.environ, "PARALLELISM": str(parallelism), "PYTHONPATH": str(REPOSITORY)}
    environment.pop("PYTHONASYNCIODEBUG", None)
    ended = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, program],
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

{setup}

def log(number):
    logging.getLogger("mine").debug("debug line")
    logging.getLogger("mine").info("info line")
    logging.getLogger("mine").warning("warning line")
    structlog.get_logger("mine").info("structured line")
    return number

run(log, 1)
structlog.get_logger("mine").info("programs own line")
print("web", [type(each).__name__ for each in logging.getLogger("aiohttp").handlers], logging.getLogger("aiohttp").level,
      logging.getLogger("aiohttp").propagate)
print("ours", [type(each).__name__ for each in logging.getLogger("flowlet").handlers if type(each) is logging.StreamHandler])
"""
SETUPS = {
    "nothing": ("", ["warning"]),
    "info": ("logging.basicConfig(level=logging.INFO)", ["info", "warning"]),
    "one logger": ("logging.basicConfig()\nlogging.getLogger('mine').setLevel('DEBUG')", ["debug", "info", "warning"]),
    "errors": ("logging.basicConfig(level=logging.ERROR)", []),
    "disabled": ("logging.basicConfig(level=logging.DEBUG)\nlogging.disable(logging.INFO)", ["warning"]),
}


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("setup", SETUPS)
def test_functions_log_what_the_program_has_set_up(tmp_path: Path, parallelism: int, setup: str) -> None:
    """Lines of structlog, which is not set up, are printed; loggers of other libraries stay as they are."""
    code, levels = SETUPS[setup]
    ours = "logging.getLogger('flowlet').addHandler(logging.StreamHandler())"
    file = written(tmp_path, LOGS.replace("{setup}", f"{code}\n{ours}"))

    ended = in_shell('exec "$@" 2>&1', file, parallelism)

    assert ended[0] == 0, ended
    text = "\n".join(ended[1])
    assert [each for each in ("debug", "info", "warning") if f"{each} line" in text] == levels, text
    assert "structured line" in text
    assert "programs own line" in text
    assert "web [] 0 True" in text
    assert "ours ['StreamHandler']" in text
