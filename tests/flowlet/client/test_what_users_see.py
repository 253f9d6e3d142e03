"""The terminal after an error in a user's program: one traceback, of the user's frames, or one line."""

import os
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowlet.client.remote import JobManagerApi
from flowlet.rpc.secret import load_or_create_secret
from tests.flowlet.client.programs import REPOSITORY, Fork, job_manager, running
from tests.waiting import PATIENCE_S, spin_until

ENGINE = str(REPOSITORY / "flowlet") + os.sep
MAX_ENGINE_FRAMES = 4

_FAILING = """\
import sys
from flowlet.datastream import StreamExecutionEnvironment

def divide(value):
    return 10 // value

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(int(sys.argv[1]))
stream = env.from_collection([0]).map(divide)
"""
_ENDS = {
    "execute": "stream.print()\nenv.execute('dividing')\n",
    "execute_async": "stream.print()\nenv.execute_async('dividing').get_job_execution_result().result()\n",
    "collect": "with stream.execute_and_collect('dividing') as results:\n    list(results)\n",
}


def errors_of(folder: Path, text: str, *arguments: str, **variables: str) -> list[str]:
    """Run a program from a file; the lines that it leaves on standard error."""
    file = folder / "program.py"
    file.write_text(text)
    with running(str(file), *arguments, environment=variables, fork=Fork.WITH_SERVER) as program:
        code, _, errors = program.end()
    assert code == 1
    return errors


def error_of(folder: Path, text: str) -> list[str]:
    """Run a program in this process, which is quicker; the lines that Python would show."""
    file = folder / "program.py"
    file.write_text(text)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, the lines say
        exec(compile(text, str(file), "exec"), {"__name__": "program"})
    assert caught.value.__traceback__ is not None
    shown = traceback.TracebackException(type(caught.value), caught.value, caught.value.__traceback__.tb_next)
    return "".join(shown.format()).splitlines()


def frames(errors: Sequence[str]) -> list[str]:
    """Return the files of all frames, in the order in which they are shown."""
    return [line.split('"')[1] for line in errors if line.startswith('  File "')]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "parallelism"),
    [("execute", "2"), ("execute_async", "1"), ("collect", "2"), pytest.param("execute", "1", marks=pytest.mark.long)],
)
def test_a_function_that_raises_is_shown_first(how: str, parallelism: str, tmp_path: Path) -> None:
    """The one traceback goes from the line that ran the job into the failed function; then the job's end follows."""
    errors = errors_of(tmp_path, _FAILING + _ENDS[how], parallelism)

    program = str(tmp_path / "program.py")
    assert errors[0] == "Traceback (most recent call last):"
    assert errors[1].startswith(f'  File "{program}", line ')
    end = errors.index("ZeroDivisionError: integer division or modulo by zero")
    assert frames(errors) == [program, program]
    assert f'  File "{program}", line 5, in divide' in errors[:end]
    assert errors[-3].startswith("flowlet.errors.JobExecutionError: job 'dividing' failed: task ")
    assert errors[-2:] == ["while processing the record 0", errors[end]]


_BUILDING = """\
import threading
from flowlet.common import Types
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
stream = env.from_collection([1])
lock = threading.Lock()
"""
_SUBMITTED = ".sink_to(DiscardingSink()); env.execute()"


MISTAKES = {
    "stream.map(3)": "JobGraphError: map() needs a callable or a MapFunction, got 3 of type int",
    "stream.map(lambda first, second: first)": (
        "JobGraphError: map() calls its function with one record, but <lambda>(first, second)"
    ),
    "stream.key_by('word')": "JobGraphError: key_by() needs a callable or a KeySelector, got 'word' of type str",
    "stream.sum(0)": "NotKeyedError: sum() needs a keyed stream: call key_by(...) before it",
    "stream.mapp(abs)": "AttributeError: ",
    "stream.sink_to(print)": (
        "JobGraphError: sink_to() needs a sink such as DiscardingSink(), got <built-in function print>"
    ),
    "env.from_collection(5)": "JobGraphError: from_collection() needs a list of elements, got 5 of type int",
    "env.from_collection(['a'], Types.INT())": (
        "JobGraphError: from_collection(): element 0 is not a Integer: 'a' is of type str"
    ),
    "env.set_parallelism('2')": (
        "JobGraphError: the environment's parallelism must be a whole number of 1 or more, got '2'"
    ),
    "env.execute()": "JobGraphError: job 'Flink Streaming Job' has no operators",
    f"stream.map(lambda value: lock){_SUBMITTED}": "JobSubmissionError: vertex ",
    f"stream.map(abs).forward().map(abs).set_parallelism(2){_SUBMITTED}": (
        "JobGraphError: forward() from 'Map' (parallelism 1)"
    ),
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_shown_with_the_users_line_first_and_one_message(
    mistake: str, message: str, tmp_path: Path
) -> None:
    errors = error_of(tmp_path, _BUILDING + mistake + "\n")

    program = str(tmp_path / "program.py")
    assert errors[:2] == ["Traceback (most recent call last):", f'  File "{program}", line 8, in <module>']
    assert frames(errors)[0] == program
    assert all(file.startswith(ENGINE) for file in frames(errors)[1:])
    assert len(frames(errors)) <= 1 + MAX_ENGINE_FRAMES
    assert message in errors[-1]


def test_a_cluster_that_is_not_there_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message stands for the three errors of libraries that lead to it."""
    monkeypatch.setenv("FLOWLET_JOBMANAGER", "127.0.0.1:1")
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))
    load_or_create_secret()

    errors = error_of(tmp_path, f"{_BUILDING}stream.map(abs){_SUBMITTED}\n")

    assert frames(errors)[0] == str(tmp_path / "program.py")
    assert len(frames(errors)) <= 1 + MAX_ENGINE_FRAMES
    assert errors[-1] == (
        "flowlet.rpc.requests.RpcConnectError: JobManager 127.0.0.1:1: Connection refused: nothing listens there; "
        "start a JobManager "
        "(flowlet jm), or correct host and port"
    )


@pytest.mark.slow
def test_a_cluster_that_is_lost_is_one_line(tmp_path: Path) -> None:
    """The cluster may be lost while the job waits for slots or runs: no line of the program is wrong."""
    (tmp_path / "program.py").write_text(_FAILING + _ENDS["execute"])
    with (
        job_manager(tmp_path) as (manager, client, environment),
        running(str(tmp_path / "program.py"), "1", environment=environment, fork=Fork.WITH_SERVER) as program,
    ):
        spin_until(lambda: client.call(JobManagerApi.list_jobs))
        manager.process.kill()
        code, _, errors = program.end()

    assert code == 1
    assert len(errors) == 1
    assert errors[0].startswith(
        f"flowlet.rpc.requests.RpcConnectError: JobManager {environment['FLOWLET_JOBMANAGER']}: "
    )


def test_an_object_that_refuses_to_be_sent_shows_its_own_lines_first(tmp_path: Path) -> None:
    """The lines of the object's own method come first, because they alone say why it cannot be sent."""
    text = """\
class Refusing:
    def __getstate__(self):
        raise ValueError("not me")
    def __call__(self, value):
        return value
"""
    errors = error_of(tmp_path, text + _BUILDING + f"stream.map(Refusing()){_SUBMITTED}\n")

    program = str(tmp_path / "program.py")
    assert errors[:2] == ["Traceback (most recent call last):", f'  File "{program}", line 3, in __getstate__']
    assert "ValueError: not me" in errors
    assert frames(errors)[1] == program
    assert len(frames(errors)) <= 2 + MAX_ENGINE_FRAMES


_OPENING = "from flowlet.ingest import open_gate\nopen_gate('clicks', jobmanager={!r})\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (
            "127.0.0.1:1",
            "Connection refused: nothing listens there; start a JobManager (flowlet jm), or correct host and port",
        ),
        (
            "no-such-host.invalid:8081",
            "the host 'no-such-host.invalid' is unknown: correct its name, or give its address",
        ),
    ],
)
def test_a_gate_without_a_jobmanager_is_one_line(address: str, reason: str, tmp_path: Path) -> None:
    """A gate without a JobManager is reported without the errors of libraries and without frames of ours."""
    secret_file = tmp_path / "secret"
    load_or_create_secret(secret_file)

    errors = errors_of(tmp_path, _OPENING.format(address), FLOWLET_SECRET_FILE=str(secret_file))

    assert errors == [f"flowlet.ingest.description.GateUnreachableError: gate 'clicks': JobManager {address}: {reason}"]


@pytest.mark.slow
def test_frames_of_ours_are_shown_on_request_alone(tmp_path: Path) -> None:
    """A developer of flowlet itself needs them."""
    quiet = errors_of(tmp_path, _BUILDING + "stream.map(3)\n")
    full = errors_of(tmp_path, _BUILDING + "stream.map(3)\n", FLOWLET_TRACEBACK="full")

    assert frames(quiet) == [str(tmp_path / "program.py")]
    assert quiet[-1] == "flowlet.errors.JobGraphError: map() needs a callable or a MapFunction, got 3 of type int"
    assert any(file.startswith(ENGINE) for file in frames(full))


@pytest.mark.slow
def test_warnings_of_task_managers_have_the_programs_own_form(tmp_path: Path) -> None:
    """The warnings are lines for people, as those of the program itself, and not JSON."""
    (tmp_path / "program.py").write_text(
        "import logging\n"
        "from flowlet.datastream import StreamExecutionEnvironment\n"
        "def loud(value):\n"
        "    logging.getLogger('mine').warning('careful %d', value)\n"
        "    return value\n"
        "env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)\n"
        "env.from_collection([1]).map(loud).print()\n"
        "env.execute()\n"
    )

    with running(str(tmp_path / "program.py"), fork=Fork.WITH_SERVER) as program:
        _, err = program.process.communicate(timeout=PATIENCE_S)

    (line,) = [line for line in err.splitlines() if "careful 1" in line]
    assert "[warning" in line
    assert "{" not in line
