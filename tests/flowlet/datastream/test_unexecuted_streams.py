"""A program that builds streams and never executes them says so in one line when it ends; all others say nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
from flowlet.datastream import StreamExecutionEnvironment

def build():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.from_collection([1, 2]).map(str).print()
    return env
"""
LINE = (
    "flowlet: the streams up to 'Sink: Print to Std. Out' were built and never executed: call execute() of their "
    "environment\n"
)
QUIET = """
build().execute()
list(build().from_collection([1]).map(abs).execute_and_collect())
StreamExecutionEnvironment.get_execution_environment().from_collection([1])
build().get_execution_plan()
env = build()
env.get_config().disable_auto_generated_uids()
try:
    env.execute()
except Exception as error:
    print(error)
"""
PROGRAMS = {
    "in a function, which has ended": ("build()", LINE),
    "while another environment was executed": ("build().execute(); env = build()", LINE),
    "executed, collected, sources alone, only the plan, refused": (QUIET, ""),
}


def stderr_of(folder: Path, program: str) -> str:
    script = folder / "program.py"
    script.write_text(f"{HEAD}\n{program}\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    return ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("program", "line"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_executes_nothing_is_told_in_one_line(program: str, line: str, tmp_path: Path) -> None:
    assert stderr_of(tmp_path, program) == line


@pytest.mark.slow
def test_an_exception_says_enough(tmp_path: Path) -> None:
    found = stderr_of(tmp_path, "env = build(); 1 / 0")

    assert "ZeroDivisionError" in found
    assert "never executed" not in found


@pytest.mark.slow
def test_a_module_that_is_imported_by_a_worker_says_nothing(tmp_path: Path) -> None:
    """Processes of ``multiprocessing`` import the program; only the program itself ends with the line."""
    spawned = (
        "import multiprocessing\nenv = build()\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=len, args=('',))\n    child.start()\n    "
        "child.join()"
    )

    assert stderr_of(tmp_path, spawned) == LINE
