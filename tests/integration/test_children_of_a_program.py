"""A program with parallelism 2, whose TaskManagers are its children, works as with parallelism 1, in its own process.

Here: how the children begin, whatever the program's folders are called and however it was started, what they take
over from it, and that nothing of them is left in it.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.flowlet.client.programs import REPOSITORY, Fork, running
from tests.integration.children_programs import HEAD, lines_of, outcome, written
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------- beginnings

SHOWS_A_MODULE = """
def show(number):
    import helper
    return helper.NAME

run(show, 1)
"""


def test_a_programs_folder_and_its_import_path_may_be_odd(tmp_path: Path) -> None:
    """Folders may have any names; the path may have entries that Python ignores, and an archive whose name has a
    colon.
    """
    folder = tmp_path / "10:21:15" / "a b\nc;d:caf\udce9"
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text("NAME = 'found'")
    archive = tmp_path / "a:b.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed.py", "NAME = 'found, too'")
    text = f"""
import pathlib

sys.path[:0] = [pathlib.Path('/nowhere'), b'/nowhere', None, '', {str(archive)!r}]

def show(number):
    import helper, packed
    return helper.NAME, packed.NAME

run(show, 1)
"""
    code, out, errors = outcome(written(folder, text), parallelism=2)

    assert (code, out) == (0, ["('found', 'found, too')"]), errors


@pytest.mark.parametrize("place", ["beside", "in a folder of PYTHONPATH"])
def test_modules_may_have_the_names_of_those_that_only_a_task_manager_imports(tmp_path: Path, place: str) -> None:
    """A function gets the program's module of that name, the TaskManager its own one; the program may have imported its
    own.
    """
    names = ["resource", "typer", "yaml"]
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("NAME = 'found'")
    text = f"""
{"import resource" if place == "beside" else ""}
def show(number):
    import {", ".join(names)}
    return [each.NAME for each in ({", ".join(names)})]

run(show, 1)
"""
    file = written(folder if place == "beside" else tmp_path, text)
    path = "" if place == "beside" else str(folder)
    code, out, errors = outcome(file, parallelism=2, PYTHONPATH=path)

    assert (code, out) == (0, [str(["found"] * len(names))]), errors


@pytest.mark.parametrize("parallelism", [2, pytest.param(1, marks=pytest.mark.long)])
def test_functions_see_the_flags_and_the_arguments_of_the_program(tmp_path: Path, parallelism: int) -> None:
    text = """
import warnings

def show(number):
    flags = sys.flags
    return (flags.optimize, flags.dev_mode, flags.utf8_mode, flags.bytes_warning, flags.dont_write_bytecode, sys._xoptions.get("mine"),
            "once::UserWarning" in sys.warnoptions, sys.argv[1:])

run(show, 1)
"""  # noqa: E501
    flags = ["-OO", "-X", "dev", "-X", "utf8", "-X", "mine=1", "-b", "-B", "-W", "once::UserWarning"]

    code, out, errors = outcome(*flags, written(tmp_path, text), "first", "--second", parallelism=parallelism)

    assert (code, out) == (0, ["(2, True, 1, 1, 1, '1', True, ['first', '--second'])"]), errors


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_an_isolated_program_has_isolated_children(tmp_path: Path, flag: str) -> None:
    """TaskManagers ignore PYTHONPATH if the program does."""
    (tmp_path / "helper.py").write_text("NAME = 'found'")
    repository = str(Path(__file__).resolve().parents[2])
    file = tmp_path / "program.py"
    file.write_text(f"import sys\nsys.path[:0] = {[str(tmp_path), repository]!r}\n{HEAD}\n{SHOWS_A_MODULE}")

    code, out, errors = outcome(flag, str(file), parallelism=2, PYTHONOPTIMIZE="2")

    assert (code, out) == (0, ["found"]), errors


def test_a_module_that_prints_when_it_is_imported_breaks_nothing(tmp_path: Path) -> None:
    """A module that every interpreter imports at its start, and one that has the name of one of ours.

    There are two interpreters: that of the program, and one from which its TaskManagers are forked.
    """
    folder = tmp_path / "modules"
    folder.mkdir()
    for name in ("sitecustomize", "resource"):
        (folder / f"{name}.py").write_text(f"print('hello from {name}')\n")
    (tmp_path / "helper.py").write_text("NAME = 'found'")

    code, out, errors = outcome(written(tmp_path, SHOWS_A_MODULE), parallelism=2, PYTHONPATH=str(folder))

    assert code == 0, errors
    assert sorted(out) == ["found", *["hello from sitecustomize"] * 2]


def test_the_program_may_come_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("NAME = 'found'")

    with running("-", environment={"PARALLELISM": "2", "PYTHONPATH": str(tmp_path)}) as program:
        assert program.process.stdin is not None
        program.process.stdin.write(HEAD + SHOWS_A_MODULE)
        code, out, errors = program.end()

    assert (code, lines_of(out)) == (0, ["found"]), errors


# ---------------------------------------------------------------- standard descriptors and limits


@pytest.mark.parametrize(("closed", "parallelism"), [("<&- 2>&-", 2), ("<&- 2>&-", 1), ("2>&-", 2)])
def test_a_program_may_be_started_with_closed_standard_descriptors(
    tmp_path: Path, closed: str, parallelism: int
) -> None:
    """A program without a standard descriptor neither aborts nor ends without a word."""
    code, out, _ = in_shell(f'exec "$@" {closed}', written(tmp_path, "run(lambda number: number + 1, 1)"), parallelism)

    assert (code, lines_of("\n".join(out))) == (0, ["2"])


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", pytest.param(">&-", marks=pytest.mark.long)])
def test_a_program_may_be_started_without_standard_output(tmp_path: Path, closed: str) -> None:
    """A program without standard output runs while it prints nothing; a function whose output cannot be shown fails its
    job.
    """
    result = tmp_path / "result"
    text = f"""
with env.from_collection([1]).map(lambda number: number).execute_and_collect() as results:
    open({str(result)!r}, "w").write(str(list(results)))
"""
    code, _, errors = in_shell(f'exec "$@" {closed}', written(tmp_path, text), 2)

    assert (code, result.read_text()) == (0, "[1]"), errors


@pytest.mark.parametrize("parallelism", [1, 2])
def test_too_few_file_descriptors_are_an_error_that_says_how_many_are_needed(tmp_path: Path, parallelism: int) -> None:
    code, _, errors = in_shell(
        'ulimit -n 24; exec "$@"', written(tmp_path, "run(lambda number: number, 1)"), parallelism
    )

    assert code == 1
    assert re.search(
        r"this process may have 24 file descriptors \(RLIMIT_NOFILE\), and \d+ are open: "
        r"a local cluster needs \d+ more; raise the limit to \d+",
        errors[-1],
    )


def in_shell(command: str, program: str, parallelism: int, *arguments: str) -> tuple[int, list[str], list[str]]:
    environment = {**os.environ, "PARALLELISM": str(parallelism), "PYTHONPATH": str(REPOSITORY)}
    environment.pop("PYTHONASYNCIODEBUG", None)
    ended = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, program, *arguments],
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

SETUPS = {
    "nothing": lambda: None,
    "info": lambda: logging.basicConfig(level=logging.INFO, force=True),
    "one logger": lambda: (logging.basicConfig(force=True), logging.getLogger("mine").setLevel("DEBUG")),
    "errors": lambda: logging.basicConfig(level=logging.ERROR, force=True),
    "disabled": lambda: (logging.basicConfig(level=logging.DEBUG, force=True), logging.disable(logging.INFO)),
}
logging.getLogger("flowlet").addHandler(logging.StreamHandler())

def log(number):
    logging.getLogger("mine").debug("debug line")
    logging.getLogger("mine").info("info line")
    logging.getLogger("mine").warning("warning line")
    structlog.get_logger("mine").info("structured line")
    return number

for name in sys.argv[1:]:
    logging.root.handlers.clear()
    logging.root.setLevel("WARNING")
    logging.getLogger("mine").setLevel("NOTSET")
    SETUPS[name]()
    print("== begins", name, flush=True)
    run(log, 1)
    structlog.get_logger("mine").info("programs own line")
    print("web", [type(each).__name__ for each in logging.getLogger("aiohttp").handlers], logging.getLogger("aiohttp").level,
          logging.getLogger("aiohttp").propagate)
    print("ours", [type(each).__name__ for each in logging.getLogger("flowlet").handlers if type(each) is logging.StreamHandler])
    sys.stdout.flush()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(env.get_parallelism())
"""  # noqa: E501
LEVELS = {
    "nothing": ["warning"],
    "info": ["info", "warning"],
    "one logger": ["debug", "info", "warning"],
    "errors": [],
    "disabled": ["warning"],
}


@pytest.mark.parametrize(
    ("parallelism", "setups"),
    [
        pytest.param(1, list(LEVELS), id="in process"),
        pytest.param(2, ["nothing", "info", "one logger"], id="children"),
        pytest.param(2, ["errors", "disabled"], marks=pytest.mark.long, id="children, less"),
    ],
)
def test_functions_log_what_the_program_has_set_up(tmp_path: Path, parallelism: int, setups: list[str]) -> None:
    """Lines of structlog, which is not set up, are printed; loggers of other libraries stay as they are."""
    code, lines, _ = in_shell('exec "$@" 2>&1', written(tmp_path, LOGS), parallelism, *setups)

    assert code == 0, lines
    before, *texts = "\n".join(lines).split("== begins ")
    assert [text.partition("\n")[0] for text in texts] == setups, before
    for setup, text in zip(setups, texts, strict=True):
        assert [each for each in ("debug", "info", "warning") if f"{each} line" in text] == LEVELS[setup], text
        assert "structured line" in text
        assert "programs own line" in text
        assert "web [] 0 True" in text
        assert "ours ['StreamHandler']" in text


# ---------------------------------------------------------------- many jobs

MANY_JOBS = """
import gc
from collections import Counter

def environment():
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(env.get_parallelism())

def run_jobs():
    numbers = environment().from_collection([1, 2, 3])
    numbers.map(lambda number: number + 1).execute_and_collect().close()
    used = environment()
    used.from_collection([1, 2, 3]).map(lambda number: number + 1).print()
    used.execute()
    used = environment()
    used.from_collection([1, 2, 3]).map(lambda number: number / 0).print()
    try:
        used.execute()
    except Exception as error:
        del error

def count():
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects())

run_jobs()
found = count()
print({name: found[name] for name in sys.argv[1:] if found[name]}, file=sys.stderr)
"""

OF_A_CLUSTER = (
    "JobManager",
    "RestApi",
    "Dispatcher",
    "JobMaster",
    "SlotPool",
    "RequestVerifier",
    "TaskExecutor",
    "EmbeddedCluster",
    "RpcClient",
)
OF_THE_WEB_LIBRARY = ("Application", "AppRunner", "ClientSession", "UrlDispatcher")


@pytest.mark.parametrize("parallelism", [1, 2])
def test_nothing_of_a_former_cluster_is_left_in_the_program(tmp_path: Path, parallelism: int) -> None:
    """A program that runs thousands of jobs does not grow, whether a job has succeeded, failed, or was closed by its
    reader.
    """
    names = (*OF_A_CLUSTER, *OF_THE_WEB_LIBRARY)

    code, _, errors = outcome(written(tmp_path, MANY_JOBS), *names, parallelism=parallelism, fork=Fork.WITH_SERVER)

    assert (code, errors) == (0, ["{}"])
