"""The built wheel is complete: it installs into a new environment, and a job runs from an empty folder.

The environment takes third-party packages from the one that runs the tests, but not flowlet itself: a path line in a
.pth file adds a folder without its own .pth files, so that an editable installation stays invisible.
"""

import ast
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "flowlet",
    "netstack",
    "tests",
    "bench",
    "examples",
    "Makefile",
    "README.md",
    "LICENSE",
    "docs",
}
JOB = """
import flowlet, netstack
from flowlet.datastream import StreamExecutionEnvironment

def word_of(pair):
    return pair[0]

if __name__ == "__main__":
    assert "site-packages" in flowlet.__file__ and "site-packages" in netstack.__file__, flowlet.__file__
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    words = env.from_collection([("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 1), ("be", 1)])
    with words.key_by(word_of).sum(1).execute_and_collect() as results:
        print(dict(results))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=3 * PATIENCE_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    interpreter = folder / "bin" / "python"
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "third_party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter)]
    command = [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=3 * PATIENCE_S)
    return interpreter


@pytest.mark.slow
def test_a_job_runs_from_an_empty_folder_with_the_wheel_alone(python: Path, tmp_path: Path) -> None:
    """No file of the source tree is needed: two TaskManager processes, a keyed sum, the results come back."""
    script = tmp_path / "scripts" / "job.py"
    script.parent.mkdir()
    script.write_text(JOB)
    (tmp_path / "empty").mkdir()
    environment = {"FLOWLET_SECRET_FILE": str(tmp_path / "secret"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    place: dict[str, Any] = {"cwd": tmp_path / "empty", "env": environment}

    done = subprocess.run([python, script], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **place)

    assert done.returncode == 0, done.stdout + done.stderr
    assert ast.literal_eval(done.stdout.strip().splitlines()[-1]) == {"to": 2, "be": 2, "or": 1, "not": 1}


@pytest.mark.slow
def test_the_console_script_is_installed(python: Path) -> None:
    done = subprocess.run(
        [python.parent / "flowlet", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "flowlet" in done.stdout


@pytest.mark.slow
def test_spark_finds_the_data_source_of_the_wheel(python: Path, tmp_path: Path) -> None:
    """Spark finds a top-level module called ``pyspark_...``, whose ``DefaultSource`` has the name of the format."""
    pytest.importorskip("pyspark", reason="needs the extra 'spark'")
    looking = (
        "import pkgutil; print(next(each.module_finder.path for each in pkgutil.iter_modules() if each.name == "
        "'pyspark_flowlet'))"
    )
    using = (
        "import pyspark_flowlet; print(pyspark_flowlet.DefaultSource.name(), pyspark_flowlet.DefaultSource.__module__)"
    )

    command = [str(python), "-P", "-c", f"{looking}; {using}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.returncode == 0, done.stderr
    (site_packages,) = python.parents[1].glob("lib/python*/site-packages")
    assert done.stdout.splitlines() == [str(site_packages), "flowlet flowlet.spark.data_source"]


@pytest.mark.slow
def test_the_wheel_holds_the_packages_the_licence_and_the_type_markers_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    tops = {name.split("/")[0] for name in names}
    (info,) = tops - {"flowlet", "netstack", "pyspark_flowlet.py"}
    assert re.fullmatch(r"flowlet-[0-9.]+\.dist-info", info)
    assert {"flowlet/py.typed", "netstack/py.typed", f"{info}/licenses/LICENSE"} <= set(names)
    for package in ("flowlet", "netstack"):
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert sources - {"flowlet/spark/discovery/pyspark_flowlet.py"} <= set(names), (
            "that one lies beside the packages"
        )


def test_the_top_level_holds_what_it_should() -> None:
    """Only dot-files and what the Makefile makes may stand beside the listed names."""
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}

    assert found - {"dist", "build"} == TOP_LEVEL
