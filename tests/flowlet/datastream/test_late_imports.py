"""The packages that a program loads with the API, and those that it does not: each costs as much as numpy, or more."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_processes import users_environment

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"aiohttp", "cryptography", "numpy", "pyarrow", "rich", "structlog", "typer", "uvloop", "yaml"}


def environment(parallelism: int) -> str:
    """Return the beginning of a program."""
    return (
        "import sys\n"
        "from flowlet.datastream import StreamExecutionEnvironment\n"
        f"env = StreamExecutionEnvironment.get_execution_environment().set_parallelism({parallelism})\n"
    )


def printed_by(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, env=users_environment()
    )
    return done.stdout


# Prints the packages of others that the program has loaded so far.
SHOW_LOADED = (
    "\nimport sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))\n"
)


def packages(line: str) -> set[str]:
    return {name for name in line.split() if not name.startswith("_")} - {"flowlet", "netstack", "distutils"}


def test_the_api_loads_no_package_of_others() -> None:
    statements = [
        "import flowlet.common",
        "from flowlet.common import Types, WatermarkStrategy, Configuration",
        "import flowlet.datastream",
        "from flowlet.datastream import StreamExecutionEnvironment",
        "from flowlet.datastream import *",
        "from flowlet.datastream.window import *",
    ]

    printed = printed_by("".join(statement + SHOW_LOADED for statement in statements)).splitlines()

    loaded = dict(zip(statements, map(packages, printed), strict=True))
    assert {statement: names for statement, names in loaded.items() if names} == {}


@pytest.mark.slow
def test_jobs_are_built_without_numpy_and_pandas() -> None:
    """Arrow imports pandas, where it is installed, for arrays of numpy."""
    build = "env.from_collection([('a', 1)]).key_by(lambda pair: pair[0]).reduce(lambda one, other: one).print()"
    build_columns = (
        "import pyarrow as pa\n"
        "from flowlet.common import Time\n"
        "from flowlet.datastream.window import TumblingEventTimeWindows\n"
        "schema = pa.schema([('k', pa.int64()), ('ts', pa.int64())])\n"
        "keyed = env.from_arrow([], schema).with_event_time('ts').key_by('k')\n"
        "keyed.window(TumblingEventTimeWindows.of(Time.seconds(1))).agg(n='count', last=('ts', 'max'))"
    )

    plain, columns = printed_by(environment(1) + build + SHOW_LOADED + build_columns + SHOW_LOADED).splitlines()[-2:]

    assert not packages(plain) & HEAVY
    assert "pandas" not in packages(columns)


# What runs in the program for a job without keys, windows, files, gates and checkpoints, and what does not.
FOR_OTHER_JOBS = (
    "flowlet.async_io.async_wait_operator",
    "flowlet.client.collect",
    "flowlet.connectors.files",
    "flowlet.connectors.kafka",
    "flowlet.connectors.gates.reader",
    "flowlet.connectors.files.reader",
    "flowlet.ingest",
    "flowlet.io.record_writer",
    "flowlet.joins",
    "flowlet.kernels",
    "flowlet.keys.key_columns",
    "flowlet.operators.keyed_aggregation_operator",
    "flowlet.types",
    "flowlet.serde.element_serializer",
    "flowlet.sorted_input",
    "flowlet.spark",
    "flowlet.state.rocksdb",
    "flowlet.state_reader",
    "flowlet.checkpoint.task.state_codec",
    "flowlet.windows",
)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_program_with_a_plain_job_loads_nothing_for_other_jobs(parallelism: int) -> None:
    """No numpy and no cryptography, which cost as much as the rest, no package for HTTP or logs, and none of our
    modules that it has no use for; its TaskManagers have what they need from the process from which they are forked.
    """
    run = (
        "texts = env.from_collection(['a', 'b']).map(str.upper).filter(str.isupper)\n"
        "texts.flat_map(lambda text: [text, text]).print()\n"
        "env.execute()\n"
        f"prefixes = {FOR_OTHER_JOBS!r} + ('cryptography', 'numpy')\n"
        "print('>', *[name for name in sorted(sys.modules) if any(name == each or name.startswith(each + '.') for each "
        "in prefixes)])"
    )

    others, loaded = printed_by(environment(parallelism) + run + SHOW_LOADED).splitlines()[-2:]

    assert others == ">"
    assert not packages(loaded) & {"aiohttp", "pyarrow", "rich", "structlog", "typer", "yaml"}


@pytest.mark.slow
def test_a_task_manager_has_loaded_what_tasks_import_late_and_no_http() -> None:
    """A module of the program with the name of one of Python's or of others cannot come between, and no job waits for
    imports.
    """
    run = (
        "seen = lambda _: ' '.join(sorted(set(sys.modules)))\n"
        "env.from_collection([('a', 1)]).map(seen).key_by(len).map(lambda first: (first, seen(0))).print()\n"
        "env.execute()"
    )

    printed = printed_by(environment(2) + run).partition("> ")[2]

    before, after = (set(names.split()) for names in ast.literal_eval(printed.strip()))
    assert {"numpy", "cryptography", "flowlet.state.heap_keyed_state_backend", "flowlet.io.record_writer"} <= before
    assert not {"aiohttp", "rich", "structlog", "typer"} & after
    late = {name for name in after - before if name.startswith(("flowlet.", "netstack.", "numpy."))}
    assert {name for name in late if not name.startswith("flowlet.operators.")} == set()
