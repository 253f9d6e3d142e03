"""Programs that print where it cannot be read: a full disk, a reader that leaves, no standard output at all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret")]

PRINTING = """
import sys
from flowlet.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(int(sys.argv[1]))
env.from_sequence(1, int(sys.argv[2])).map(lambda number: f"line {number}").print()
env.execute("printer")
"""
# The records go to the program; what its functions print goes through standard output.
COLLECTING = """
import sys
from flowlet.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(int(sys.argv[1]))
def tell(number):
    print("seen", number)
    return number
found = list(env.from_sequence(1, int(sys.argv[2])).map(tell).execute_and_collect())
print(len(found), file=sys.stderr)
"""
IN_PROCESS, CHILDREN = 1, 2


@pytest.fixture
def full() -> Iterator[IO[bytes]]:
    with open("/dev/full", "wb") as file:
        yield file


def program(text: str, parallelism: int, num_records: int, shell: str = "") -> list[str]:
    command = [sys.executable, "-c", text, str(parallelism), str(num_records)]
    return ["sh", "-c", f'exec "$@" {shell}', "sh", *command] if shell else command


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def ended(command: list[str], stdout: IO[bytes] | None = None) -> tuple[int, bytes]:
    """Return the exit code and the standard error."""
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=PATIENCE_S)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("parallelism", "num_records"),
    [(IN_PROCESS, 2), (CHILDREN, 2), pytest.param(CHILDREN, 100_000, marks=pytest.mark.long)],
)
def test_a_full_disk_fails_the_job_that_prints(parallelism: int, num_records: int, full: IO[bytes]) -> None:
    """A full disk fails the job even if all lines would have fitted into a pipe, so that the tasks have finished when
    they cannot be written.
    """
    code, errors = ended(program(PRINTING, parallelism, num_records), full)

    assert code != 0
    assert b"JobExecutionError: job 'printer' failed" in errors
    assert b"cannot" in errors
    assert b"to standard output: [Errno 28] No space left on device" in errors


@pytest.mark.parametrize("parallelism", [IN_PROCESS, CHILDREN])
def test_a_reader_that_leaves_ends_the_job_with_one_line(parallelism: int) -> None:
    """A job whose reader leaves, as in ``program | head``, ends with one line; it would print for minutes otherwise."""
    command = program(PRINTING, parallelism, 1_000_000_000)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.stdout.close()
    process.stdout = None

    _, errors = process.communicate(timeout=PATIENCE_S)

    assert all(b"line " in line for line in lines)
    assert process.returncode not in (0, -6)
    assert b"Traceback" not in errors
    assert errors.rstrip().endswith(b"to standard output: its reader has left")


@pytest.mark.parametrize("parallelism", [IN_PROCESS, CHILDREN])
def test_without_a_standard_output_a_job_that_prints_fails_and_says_so(parallelism: int) -> None:
    code, errors = ended(program(PRINTING, parallelism, 10, ">&-"))

    assert code == 1
    assert b"cannot" in errors
    assert (
        b"to standard output: it is closed; start the program with one, such as >/dev/null, or use another sink"
        in errors
    )


@pytest.mark.parametrize("parallelism", [IN_PROCESS, CHILDREN])
def test_without_a_standard_output_functions_print_nothing_as_python_has_it(parallelism: int) -> None:
    """Without a standard output functions print nothing, wherever they run."""
    assert ended(program(COLLECTING, parallelism, 10, ">&-")) == (0, b"10\n")


def test_what_functions_print_while_results_are_collected_is_not_lost_in_silence_either(full: IO[bytes]) -> None:
    code, errors = ended(program(COLLECTING, CHILDREN, 100), full)

    assert code != 0
    assert b"what its tasks print cannot be written to standard output: [Errno 28] No space left on device" in errors
