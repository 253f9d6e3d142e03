"""Ctrl-C, as a real signal, while the processes of a cluster and the command ``flowlet`` start: one line and no
traceback.

JobManager and TaskManager end with exit code 0, as after each stop signal; the command ends as a program that SIGINT
ended.
"""

from pathlib import Path

import pytest

from tests.flowlet.client.programs import running, silent_job_manager

pytestmark = pytest.mark.slow
TASK_MANAGER = ("-m", "flowlet.tm", "--jobmanager", "127.0.0.1:1")
JOB_MANAGER = ("-m", "flowlet.jm", "--port", "0")

# Modules that every one of our programs imports are replaced by this.
_STOPS_AT_IMPORT = """
import signal
print("importing", flush=True)
signal.pause()
"""

# Imported by Python itself at its start.
_STOPS_BEFORE_BINDING = """
import asyncio, sys
{imports}
bind = {method}
async def wait_and_bind(*arguments):
    print("binding", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return await bind(*arguments)
{method} = wait_and_bind
"""
_BINDINGS = {
    "JobManager": (JOB_MANAGER, "from flowlet.jm.job_manager import JobManager", "JobManager.start"),
    "TaskManager": (TASK_MANAGER, "from flowlet.tm.task_executor import TaskExecutor", "TaskExecutor.start"),
}


def environment(tmp_path: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(tmp_path), "FLOWLET_SECRET_FILE": str(tmp_path / "secret")}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (JOB_MANAGER, (0, "", ["python -m flowlet.jm: interrupted"])),
        (TASK_MANAGER, (0, "", ["python -m flowlet.tm: interrupted"])),
        (("-m", "flowlet", "list"), (130, "", ["flowlet: interrupted"])),
    ],
)
def test_while_modules_are_imported(
    command: tuple[str, ...], expected: tuple[int, str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text(_STOPS_AT_IMPORT)

    with running(*command, environment=environment(tmp_path)) as program:
        program.wait_for_output("importing")
        program.interrupt()

        assert program.end() == expected


@pytest.mark.parametrize("who", _BINDINGS)
def test_while_it_binds(who: str, tmp_path: Path) -> None:
    """A process that is interrupted while it binds ends as soon as it is bound, frees the port, and logs this in one
    last line.
    """
    command, imports, method = _BINDINGS[who]
    (tmp_path / "sitecustomize.py").write_text(_STOPS_BEFORE_BINDING.format(imports=imports, method=method))

    with running(*command, "--log-format", "console", environment=environment(tmp_path)) as program:
        program.wait_for_output("binding")
        program.interrupt()
        program.answer()
        code, out, errors = program.end()

    assert code == 0
    assert "TaskManager" not in out
    assert len([line for line in errors if "stop" in line]) == 1
    assert not any("Traceback" in line for line in errors)


def test_while_a_task_manager_waits_for_its_job_manager(tmp_path: Path) -> None:
    with running(*TASK_MANAGER, "--log-format", "console", environment=environment(tmp_path)) as program:
        program.wait_for_error("no JobManager yet")
        program.interrupt()
        code, out, errors = program.end()

    assert (code, out) == (0, "")
    assert [line for line in errors if "no JobManager yet" not in line and "stopping" not in line] == []
    assert len([line for line in errors if "stopping" in line]) == 1


def test_while_a_command_waits_for_its_answer(tmp_path: Path) -> None:
    with (
        silent_job_manager(tmp_path) as (server, found),
        running("-m", "flowlet", "list", "--jobmanager", found["FLOWLET_JOBMANAGER"], environment=found) as program,
    ):
        connection, _ = server.accept()
        with connection:
            program.interrupt()

            assert program.end() == (130, "", ["flowlet: interrupted"])
