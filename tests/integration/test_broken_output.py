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


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}


@pytest.mark.parametrize(
    ("parallelism", "num_records"),
    [(IN_PROCESS, 2), (CHILDREN, 2), pytest.param(CHILDREN, 100_000, marks=pytest.mark.long)],
)
def test_a_full_disk_fails_the_job_that_prints(
    parallelism: int, num_records: int, full: IO[bytes], tmp_path: Path
) -> None:
    """A full disk fails the job even if all lines would have fitted into a pipe, so that the tasks have finished when
    they cannot be written.
    """
    done = subprocess.run(
        program(PRINTING, parallelism, num_records),
        stdout=full,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
        timeout=PATIENCE_S,
    )

    assert done.returncode != 0
    assert b"JobExecutionError: job 'printer' failed" in done.stderr
    assert b"cannot" in done.stderr
    assert b"to standard output: [Errno 28] No space left on device" in done.stderr


@pytest.mark.parametrize("parallelism", [IN_PROCESS, CHILDREN])
def test_a_reader_that_leaves_ends_the_job_with_one_line(parallelism: int, tmp_path: Path) -> None:
    """A job whose reader leaves, as in ``program | head``, ends with one line; it would print for minutes otherwise."""
    process = subprocess.Popen(
        program(PRINTING, parallelism, 1_000_000_000),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
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
def test_without_a_standard_output_a_job_that_prints_fails_and_says_so(parallelism: int, tmp_path: Path) -> None:
    done = subprocess.run(
        program(PRINTING, parallelism, 10, ">&-"), stderr=subprocess.PIPE, env=environment(tmp_path), timeout=PATIENCE_S
    )

    assert done.returncode == 1
    assert b"cannot" in done.stderr
    assert (
        b"to standard output: it is closed; start the program with one, such as >/dev/null, or use another sink"
        in done.stderr
    )


@pytest.mark.parametrize("parallelism", [IN_PROCESS, CHILDREN])
def test_without_a_standard_output_functions_print_nothing_as_python_has_it(parallelism: int, tmp_path: Path) -> None:
    """Without a standard output functions print nothing, wherever they run."""
    done = subprocess.run(
        program(COLLECTING, parallelism, 10, ">&-"),
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
        timeout=PATIENCE_S,
    )

    assert (done.returncode, done.stderr) == (0, b"10\n")


def test_what_functions_print_while_results_are_collected_is_not_lost_in_silence_either(
    full: IO[bytes], tmp_path: Path
) -> None:
    done = subprocess.run(
        program(COLLECTING, CHILDREN, 100),
        stdout=full,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
        timeout=PATIENCE_S,
    )

    assert done.returncode != 0
    assert (
        b"what its tasks print cannot be written to standard output: [Errno 28] No space left on device" in done.stderr
    )
