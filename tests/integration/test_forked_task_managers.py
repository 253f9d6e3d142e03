"""TaskManagers of a program are forked from one process, and are as separate as if each had been executed."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from flowlet.client.children import OutputForwarder, TaskManagerOptions
from flowlet.client.fork_server_client import KEPT_SERVER, ForkServer, ServerProcess
from flowlet.client.python_interpreter import program_start
from flowlet.errors import FlowletError
from flowlet.tm.process.program_start import SERVER_BOOT
from flowlet.tm.taskmanager_process import PROCESS_NAME
from tests.flowlet.client.programs import Fork, Program, running
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

HEAD = """
import os, random, sys, threading, time
from flowlet.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)

def run(function):
    env.from_collection([1, 2]).rebalance().map(function).print()
    env.execute()
"""


@contextmanager
def started(folder: Path, text: str, fork: Fork = Fork.WITH_SERVER, **environment: str) -> Iterator[Program]:
    (folder / "program.py").write_text(HEAD + text)
    with running(str(folder / "program.py"), environment=environment, fork=fork) as program:
        yield program


def answers(folder: Path, text: str, fork: Fork = Fork.WITH_SERVER, **environment: str) -> list[str]:
    """Return the output of the functions on both TaskManagers, without the numbers of subtasks."""
    with started(folder, text, fork, **environment) as program:
        code, out, errors = program.end()
    assert code == 0, errors
    return [line.partition("> ")[2] for line in out.splitlines()]


def family(program: Program) -> tuple[psutil.Process, list[psutil.Process]]:
    """The process from which TaskManagers are forked, and these."""
    (server,) = psutil.Process(program.process.pid).children()
    children = server.children()
    assert {child.name() for child in children} == {PROCESS_NAME}
    return server, children


def test_each_has_another_seed_and_another_id_and_one_parent(tmp_path: Path) -> None:
    """``random`` and numpy's generator, which no code has imported before, are seeded anew in each TaskManager."""
    text = "run(lambda _: (os.getpid(), random.random(), __import__('numpy').random.random(), os.getppid()))"

    one, other = (eval(line) for line in answers(tmp_path, text))

    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]
    assert one[3] == other[3]


def test_none_has_descriptors_of_another_one_or_of_the_process_that_forked_it(tmp_path: Path) -> None:
    """Descriptors of TaskManagers are those of the parent alone; the second one is forked while the first one runs."""
    text = """
def links(_):
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # it was that of the listing
            pass
    return sum("pidfd" in each for each in found), sum(each.startswith("pipe") for each in found)

run(links)
"""

    one, other = answers(tmp_path, text, Fork.PROGRAM)

    assert one == other
    assert eval(one)[0] == 1


def test_variables_that_set_options_of_task_managers_count(tmp_path: Path) -> None:
    """Variables are parsed with the options of the command; a wrong one gives the command's message."""
    assert sorted(answers(tmp_path, "run(str)", FLOWLET_HEARTBEAT_INTERVAL_S="3.5")) == ["1", "2"]

    with started(tmp_path, "run(str)", FLOWLET_HEARTBEAT_INTERVAL_S="often") as program:
        code, _, errors = program.end()

    assert code == 1
    assert any("FLOWLET_HEARTBEAT_INTERVAL_S" in line or "heartbeat-interval-s" in line for line in errors), errors


def test_variables_and_working_directory_are_those_of_the_program(tmp_path: Path) -> None:
    text = "os.chdir('/')\nos.environ['SET_LATE'] = 'yes'\nrun(lambda _: (os.getcwd(), os.environ['SET_LATE']))"

    assert answers(tmp_path, text, Fork.PROGRAM) == ["('/', 'yes')"] * 2


PARENT = "lambda _: os.getppid()"


def test_a_second_job_has_the_server_of_the_first_one(tmp_path: Path) -> None:
    """A second job has its own arguments, import path of the moment and loggers nevertheless."""
    text = f"""
run({PARENT})
sys.argv.append("late")
run(lambda _: (os.getppid(), sys.argv[1:]))
"""

    first, other, *late = answers(tmp_path, text)

    assert first == other
    assert late == [str((int(first), ["late"]))] * 2


# What a program changes between two jobs, and how its functions see it.
CHANGES = {
    "os.environ['SET_LATE'] = 'yes'": "os.environ.get('SET_LATE')",
    "os.umask(0o027)": "os.umask(0o027)",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))": "resource.getrlimit(resource.RLIMIT_NOFILE)",
    "sys.path.append('/late')": "'/late' in sys.path",
    "signal.signal(signal.SIGUSR2, signal.SIG_IGN)": "signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN",
    "os.nice(3)": "os.nice(0)",
    "sys.warnoptions.append('ignore::ImportWarning')": "'ignore::ImportWarning' in sys.warnoptions",
}


def test_a_second_job_has_another_server_if_the_program_has_changed(tmp_path: Path) -> None:
    """A process inherits, and imports with, the settings at the time of its job, as if no job had run before."""
    text = "import resource, signal\n"
    for change, look in {"": "None", **CHANGES}.items():
        text += f"see = lambda _: (os.getppid(), repr({look}))\n"
        text += f"{change}\nrun(see)\nprint('> ' + repr((os.getpid(), repr({look}))), flush=True)\n"
    before = "import resource, signal\n" + "".join(f"print('>', {look})\n" for look in CHANGES.values())

    found = [eval(line) for line in answers(tmp_path, text, Fork.PROGRAM)]
    former = answers(tmp_path, before)

    jobs = [found[first : first + 3] for first in range(0, len(found), 3)]
    assert len({one[0] for one, _, _ in jobs}) == len(jobs) == 1 + len(CHANGES), "a server each"
    for change, old, (one, other, program) in zip(CHANGES, former, jobs[1:], strict=True):
        assert one == other, change
        assert one[1] == program[1], f"{change}: the program's own"
        assert one[1] != old, change


def test_a_kept_server_gets_working_directory_and_standard_error_anew(tmp_path: Path) -> None:
    """Working directory and standard error often change in a program, and need no new server.  A module that was
    written meanwhile is found.
    """
    (tmp_path / "there").mkdir()
    text = f"""
folder = {str(tmp_path / "there")!r}
sys.path.append(folder)
def see(_):
    os.write(2, b"from the second job\\n")
    return os.getppid(), os.getcwd(), __import__("written_late").VALUE
run({PARENT})
os.chdir(folder)
with open("written_late.py", "w") as module:
    module.write("VALUE = 7")
kept = os.dup(2)
file = os.open("errors", os.O_WRONLY | os.O_CREAT)
os.dup2(file, 2)
run(see)
os.dup2(kept, 2)
""".replace("\\\\", "\\")

    first, _, *second = answers(tmp_path, text)

    assert second == [str((int(first), str(tmp_path / "there"), 7))] * 2
    assert (tmp_path / "there" / "errors").read_text() == "from the second job\n" * 2


def test_a_kept_server_holds_no_pipe_of_the_program(tmp_path: Path) -> None:
    """The reader of a job's standard error comes to its end when the job is over."""
    text = f"""
reading, writing = os.pipe()
kept = os.dup(2)
os.dup2(writing, 2)
os.close(writing)
run({PARENT})
os.dup2(kept, 2)
print("> " + repr(os.read(reading, 100)))
run({PARENT})
"""

    first, other, read, *second = answers(tmp_path, text)

    assert read == "b''"
    assert {first, other, *second} == {first}


def test_a_kept_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    text = f"""
parents = []
for _ in range(2):
    with env.from_collection([1]).map({PARENT}).execute_and_collect() as found:
        parents += found
    os.kill(parents[-1], 9)
print("> " + repr(len(set(parents))))
"""

    assert answers(tmp_path, text) == ["2"]


def test_a_program_that_closes_what_is_open_between_two_jobs_keeps_its_new_files(tmp_path: Path) -> None:
    """The new files keep their content: numbers of closed descriptors may belong to files by now, which are not ours to
    close or write to.
    """
    (tmp_path / "file").touch()
    text = f"""
run({PARENT})
for name in os.listdir("/proc/self/fd"):
    if os.path.lexists(f"/proc/self/fd/{{name}}") and os.readlink(f"/proc/self/fd/{{name}}").startswith("socket"):
        replaced = int(name)
file = os.open({str(tmp_path / "file")!r}, os.O_RDWR)
os.dup2(file, replaced)
run({PARENT})
print("> " + os.readlink(f"/proc/self/fd/{{replaced}}") + " " + str(os.fstat(replaced).st_size))
"""

    first, _, other, _, last = answers(tmp_path, text)

    assert first != other
    assert last == f"{tmp_path / 'file'} 0"


def test_clusters_at_the_same_time_have_a_server_each_and_one_is_kept(tmp_path: Path) -> None:
    text = f"""
def parents():
    return env.from_collection([1]).map({PARENT}).execute_and_collect()
def num_children():
    return len(open(f"/proc/self/task/{{os.getpid()}}/children").read().split())
with parents() as one, parents() as other:
    both = num_children()
    found = [*one, *other]
with parents() as third:
    found += third
print("> " + repr((both, num_children(), len(set(found)))))
"""

    assert answers(tmp_path, text) == ["(2, 1, 2)"]


def test_a_fork_of_the_program_has_a_server_of_its_own(tmp_path: Path) -> None:
    """A fork leaves the server of the program alone, also when the fork ends."""
    text = f"""
run({PARENT})
child = os.fork()
if not child:
    run({PARENT})
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
run({PARENT})
"""

    one, _, of_child, _, again, _ = answers(tmp_path, text)

    assert one == again
    assert of_child != one


ENDS = {
    "exit": "",
    "sys.exit": "sys.exit()",
    "os._exit": "os._exit(0)",
    "exception": "raise ValueError",
    "SIGTERM": "os.kill(os.getpid(), 15)",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "exec": "os.execv('/bin/true', ['true'])",
    "exit function that runs a job": "sys.exit()",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_kept_server_ends_with_the_program(tmp_path: Path, end: str) -> None:
    """A kept server ends with the program at once, however the program ends."""
    early = f"import atexit\natexit.register(lambda: run({PARENT}))\n" if "function" in end else ""
    text = f"run({PARENT})\nprint('> ready', flush=True)\nsys.stdin.readline()\n{ENDS[end]}"
    with started(tmp_path, early + text) as program:
        program.wait_for_output("ready")
        (server,) = psutil.Process(program.process.pid).children()
        program.answer()
        _, out, _ = program.end()

        assert psutil.wait_procs([server], timeout=PATIENCE_S)[1] == []
    assert len(out.splitlines()) == (2 if "function" in end else 0)


def test_a_kept_server_has_no_thread_and_few_descriptors_in_the_program(tmp_path: Path) -> None:
    """Threads, descriptors and processes of a kept server do not grow with the jobs."""
    text = f"""
def count():
    children = open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), len(children)
run({PARENT})
one = count()
for _ in range(3):
    run({PARENT})
print("> " + repr((one == count(), one[0], one[2])))
"""

    assert answers(tmp_path, text)[-1] == "(True, 1, 1)"


def test_a_program_that_waits_for_all_of_its_children_goes_on(tmp_path: Path) -> None:
    """A kept server ends after its rest; the next job has another one."""
    text = f"""
from flowlet.client.fork_server_client import KEPT_SERVER
KEPT_SERVER.max_rest_s = 0.01
run({PARENT})
try:
    while True:
        os.wait()
except ChildProcessError:
    print("> none is left", flush=True)
run({PARENT})
"""

    found = answers(tmp_path, text)

    assert found[2] == "none is left"
    assert found[0] != found[3]


WAITS = """
env.from_collection([1, 2]).rebalance().map(lambda _: (os.write(1, b"runs\\n"), time.sleep(3600))).print()
env.execute()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_without_the_process_that_forks_them_they_end_and_are_replaced(tmp_path: Path, number: signal.Signals) -> None:
    """Without a process that forks them, TaskManagers end, and the job fails, as it has no restarts; the program ends
    and leaves no process.
    """
    with started(tmp_path, WAITS) as program:
        program.wait_for_output("runs")
        server, children = family(program)
        os.kill(server.pid, number)
        code, _, errors = program.end()

    assert code == 1
    assert any("lost" in line for line in errors), errors
    assert psutil.wait_procs([server, *children], timeout=PATIENCE_S)[1] == []


FAILS_ONCE = """
import errno, os, socket
real = {module}.{name}
def fail(*given):
    {module}.{name} = real
{body}
{module}.{name} = fail
"""
# How a server loses what a child needs, once.
FAULTS = {
    "no process": ("os", "fork", "    raise OSError(errno.EAGAIN, 'no process')"),
    "no descriptor of the child": ("os", "pidfd_open", "    raise OSError(errno.EMFILE, 'no descriptor')"),
    "no room for the descriptors of the order": (
        "socket",
        "recv_fds",
        "    message, found, *rest = real(*given)\n    os.close(found.pop())\n    return message, found, *rest",
    ),
}


@pytest.fixture
def program_file(tmp_path: Path) -> Path:
    KEPT_SERVER.close()
    (tmp_path / "program.json").write_text(program_start(None).to_json())
    return tmp_path / "program.json"


@pytest.mark.parametrize("fault", FAULTS)
def test_one_that_cannot_be_forked_is_an_error_and_the_server_goes_on(
    program_file: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The server has the exit codes of all others, which would end with it."""
    module, name, body = FAULTS[fault]
    boot = FAILS_ONCE.format(module=module, name=name, body=body) + SERVER_BOOT
    monkeypatch.setattr("flowlet.client.python_interpreter.SERVER_BOOT", boot)
    forwarder = OutputForwarder()
    server = ForkServer(None, program_file, forwarder, socket.socket.close)
    options = TaskManagerOptions("nowhere", program_file, program_file, 1)
    try:
        server.wait_ready(time.monotonic() + PATIENCE_S)
        pid = server.pid
        with pytest.raises(FlowletError, match=r"no TaskManager can be forked: .*raise the limit"):
            server.launch(options)
        assert psutil.Process(pid).children() == []

        child = server.launch(options)
        spin_until(child.end, "the end of a TaskManager without a JobManager")

        assert "ended with exit code" in (child.end() or ""), "the server has told it"
        assert server.pid == pid
        assert child.remove_output()
    finally:
        server.close()
        forwarder.close()
        KEPT_SERVER.close()


def test_a_server_whose_program_has_left_before_its_answer_ends_well(
    program_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = """
import os, select, sys
def wait_for_the_programs_end(pid, control=int(sys.argv[3])):
    looker = select.poll()
    looker.register(control, 0)
    looker.poll()
    return pidfd_open(pid)
pidfd_open, os.pidfd_open = os.pidfd_open, wait_for_the_programs_end
"""
    monkeypatch.setattr("flowlet.client.python_interpreter.SERVER_BOOT", boot + SERVER_BOOT)
    server = ServerProcess((), None, program_file)
    server.answer()
    ours, theirs = socket.socketpair()
    with ours, theirs, Path(os.devnull).open("wb") as nothing:
        order = {"kind": "fork", "program_file": str(program_file), "arguments": []}
        server.order(order, [*[nothing.fileno()] * 4, theirs.fileno(), nothing.fileno()])

    server.end()

    assert repr(server).endswith(" 0>")
