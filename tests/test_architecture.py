"""What the architecture documents say exists, exists: modules and tests that they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = (ROOT / "netstack" / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Where each mechanism lives")[2]
TEST_SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
TEST_NAMES = set(re.findall(r"def (test_\w+)", TEST_SOURCES))
TEST_FILES = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
FLOWLET_TABLE = (ROOT / "flowlet" / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Inventory of mechanisms")[2]
NAMED_TESTS = sorted(set(re.findall(r"\b(test_\w+)", TABLE)))
FLOWLET_TESTS = sorted(set(re.findall(r"\b(test_\w+)", FLOWLET_TABLE)))
FLOWLET_MODULES = sorted(set(re.findall(r"\b((?:\w+/)*\w+\.py)\b", FLOWLET_TABLE)))
NAMED_MODULES = sorted(set(re.findall(r"\b((?:wire|flow|channel|handlers|buffer|partition|gate|testing|bench|examples)/\w+\.py)\b", TABLE)))


def is_known(name: str) -> bool:
    """A test file, a test, or the beginning of the names of several (written with a star)."""
    return name in TEST_FILES or name in TEST_NAMES or any(each.startswith(name) for each in TEST_NAMES)


@pytest.mark.parametrize("name", NAMED_TESTS)
def test_every_test_that_is_named_exists(name: str) -> None:
    """A table that names tests that are gone says nothing."""
    assert is_known(name), f"netstack/ARCHITECTURE.md names {name}, which is neither a test nor a file with tests"


@pytest.mark.parametrize("name", NAMED_MODULES)
def test_every_module_that_is_named_exists(name: str) -> None:
    """So that a reader finds it."""
    places = (ROOT / "netstack" / name, ROOT / name, ROOT / "tests" / "netstack" / name)
    assert any(place.is_file() for place in places), f"netstack/ARCHITECTURE.md names {name}"


@pytest.mark.parametrize("name", FLOWLET_TESTS)
def test_every_test_that_the_runtimes_table_names_exists(name: str) -> None:
    """As above, for flowlet."""
    assert is_known(name), f"flowlet/ARCHITECTURE.md names {name}, which is neither a test nor a file with tests"


@pytest.mark.parametrize("name", FLOWLET_MODULES)
def test_every_module_that_the_runtimes_table_names_exists(name: str) -> None:
    """With its folders, or as many of them as the table gives."""
    places = [path for top in ("flowlet", "netstack", "bench", "tests") for path in (ROOT / top).rglob(name.rpartition("/")[2])]
    assert any(str(path).endswith(f"/{name}") for path in places), f"flowlet/ARCHITECTURE.md names {name}"


def test_the_table_is_not_empty() -> None:
    """The two tests above look at something."""
    assert len(NAMED_TESTS) > 150
    assert len(NAMED_MODULES) > 15
    assert len(FLOWLET_TESTS) > 40
    assert len(FLOWLET_MODULES) > 5
