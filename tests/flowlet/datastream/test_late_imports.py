"""What a program loads with the API, and what it does not: each of these packages costs as much as numpy, or more."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"aiohttp", "cryptography", "numpy", "pyarrow", "rich", "structlog", "typer", "uvloop", "yaml"}


def loaded_by(statement: str) -> set[str]:
    """The packages of others that a program with this statement has loaded."""
    program = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}} - set(sys.stdlib_module_names)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.splitlines()[-1].split() if not name.startswith("_")} - {"flowlet", "netstack", "distutils"}


@pytest.mark.parametrize(
    "statement",
    [
        "import flowlet.datastream",
        "import flowlet.common",
        "from flowlet.datastream import StreamExecutionEnvironment",
        "from flowlet.common import Types, WatermarkStrategy, Configuration",
        "from flowlet.datastream import *",
        "from flowlet.datastream.window import *",
    ],
)
def test_the_api_loads_no_package_of_others(statement: str) -> None:
    assert loaded_by(statement) == set()


@pytest.mark.slow
def test_a_program_is_built_without_numpy() -> None:
    build = (
        "from flowlet.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([('a', 1)]).key_by(lambda pair: pair[0]).reduce(lambda one, other: one).print()"
    )

    assert not loaded_by(build) & HEAVY


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_local_job_runs_without_http_and_structlog(parallelism: int) -> None:
    """In the program; its TaskManagers have what they need from the process from which they are forked."""
    run = (
        "from flowlet.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        f"env.set_parallelism({parallelism})\n"
        "env.from_collection(['a', 'b']).map(str.upper).print()\n"
        "env.execute()"
    )

    assert not loaded_by(run) & {"aiohttp", "pyarrow", "rich", "structlog", "typer", "yaml"}


@pytest.mark.slow
def test_a_function_in_a_task_manager_finds_no_http_loaded() -> None:
    run = (
        "import sys\n"
        "from flowlet.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.set_parallelism(2)\n"
        "env.from_collection([1]).map(lambda _: sorted({'aiohttp', 'rich', 'structlog', 'typer'} & set(sys.modules))).print()\n"
        "env.execute()"
    )
    done = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.partition("> ")[2] == "[]\n"
