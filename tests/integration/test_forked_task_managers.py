"""TaskManagers of a program are forked from one process, and are as separate as if each had been executed."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from flowlet.tm.fork_server import PROCESS_NAME
from tests.flowlet.client.programs import Program, running
from tests.waiting import PATIENCE_S

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


def answers(folder: Path, text: str, **environment: str) -> list[str]:
    """What the functions on both TaskManagers print, without the numbers of subtasks."""
    (folder / "program.py").write_text(HEAD + text)
    with running(str(folder / "program.py"), environment=environment) as program:
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
    """``random`` is seeded anew in each of them, and so is numpy's generator, which nobody has imported before."""
    text = "run(lambda _: (os.getpid(), random.random(), __import__('numpy').random.random(), os.getppid()))"

    one, other = (eval(line) for line in answers(tmp_path, text))

    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]
    assert one[3] == other[3]


def test_none_has_descriptors_of_another_one_or_of_the_process_that_forked_it(tmp_path: Path) -> None:
    """The second one is forked while the first one runs.  A descriptor of a process is that of the parent."""
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

    one, other = answers(tmp_path, text)

    assert one == other
    assert eval(one)[0] == 1


def test_variables_that_set_options_of_task_managers_count(tmp_path: Path) -> None:
    """They are parsed with the options of the command then; a wrong one is told as the command tells it."""
    assert sorted(answers(tmp_path, "run(str)", FLOWLET_HEARTBEAT_INTERVAL_S="3.5")) == ["1", "2"]

    (tmp_path / "program.py").write_text(HEAD + "run(str)")
    with running(str(tmp_path / "program.py"), environment={"FLOWLET_HEARTBEAT_INTERVAL_S": "often"}) as program:
        code, _, errors = program.end()

    assert code == 1
    assert any("FLOWLET_HEARTBEAT_INTERVAL_S" in line or "heartbeat-interval-s" in line for line in errors), errors


def test_variables_and_working_directory_are_those_of_the_program(tmp_path: Path) -> None:
    text = "os.chdir('/')\nos.environ['SET_LATE'] = 'yes'\nrun(lambda _: (os.getcwd(), os.environ['SET_LATE']))"

    assert answers(tmp_path, text) == ["('/', 'yes')"] * 2


def test_a_second_job_has_the_variables_of_its_own_time(tmp_path: Path) -> None:
    text = "run(lambda _: os.environ.get('SET_LATE'))\nos.environ['SET_LATE'] = 'yes'\nrun(lambda _: os.environ.get('SET_LATE'))"

    assert answers(tmp_path, text) == ["None", "None", "yes", "yes"]


WAITS = """
env.from_collection([1, 2]).rebalance().map(lambda _: (os.write(1, b"runs\\\\n"), time.sleep(3600))).print()
env.execute()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_without_the_process_that_forks_them_they_end_and_are_replaced(tmp_path: Path, number: signal.Signals) -> None:
    """The job fails, because it has no restarts; the program ends, and nothing of it stays."""
    (tmp_path / "program.py").write_text(HEAD + WAITS.replace("\\\\", "\\"))
    with running(str(tmp_path / "program.py")) as program:
        program.wait_for_output("runs")
        server, children = family(program)
        os.kill(server.pid, number)
        code, _, errors = program.end()

    assert code == 1
    assert any("was lost" in line or "is lost" in line or "lost" in line for line in errors), errors
    assert psutil.wait_procs([server, *children], timeout=PATIENCE_S)[1] == []


def test_a_killed_program_takes_the_process_that_forks_with_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HEAD + WAITS.replace("\\\\", "\\"))
    with running(str(tmp_path / "program.py")) as program:
        program.wait_for_output("runs")
        server, children = family(program)
        program.process.kill()
        program.process.wait(PATIENCE_S)

        assert psutil.wait_procs([server, *children], timeout=PATIENCE_S)[1] == []


def test_a_task_manager_that_dies_is_replaced(tmp_path: Path) -> None:
    text = (
        "from flowlet.common import RestartStrategies\n"
        "env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10))\n"
        f"marker = {str(tmp_path / 'died')!r}\n"
        "def die_once(value):\n"
        "    if value == 1 and not os.path.exists(marker):\n"
        "        open(marker, 'w').close()\n"
        "        os._exit(7)\n"
        "    return value\n"
        "run(die_once)"
    )
    (tmp_path / "program.py").write_text(HEAD + text)
    with running(str(tmp_path / "program.py")) as program:
        code, out, errors = program.end()

    assert code == 0, errors
    assert {"1", "2"} <= {line.partition("> ")[2] for line in out.splitlines()}
