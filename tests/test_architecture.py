"""Modules and tests that the inventory names exist; and no mechanism of Flink is forgotten."""

import ast
import re
from pathlib import Path

import pytest

from tests.syntax_trees import tree_of

ROOT = Path(__file__).resolve().parent.parent
INVENTORY = (ROOT / "docs" / "maintainers" / "inventory.md").read_text(encoding="utf-8").partition("\n## netstack\n")[2]
TABLE, _, FLOWLET_TABLE = INVENTORY.partition("\n## flowlet\n")
TEST_SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
TEST_NAMES = set(re.findall(r"def (test_\w+)", TEST_SOURCES))
TEST_FILES = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
NAMED_TESTS = sorted(set(re.findall(r"\b(test_\w+)", TABLE)))
FLOWLET_TESTS = sorted(set(re.findall(r"\b(test_\w+)", FLOWLET_TABLE)))
FLOWLET_MODULES = sorted(set(re.findall(r"\b((?:\w+/)*\w+\.py)\b", FLOWLET_TABLE)))
FOLDERS = "wire|flow|channel|handlers|buffer|partition|gate|testing|bench|examples"
NAMED_MODULES = sorted(set(re.findall(rf"\b((?:{FOLDERS})/(?:\w+/)*\w+\.py)\b", TABLE)))

# The rows of the inventory of Flink's mechanisms: A the way of a record, B the task and its gates, C inputs and
# watermarks, D the transfer of data, E the mailbox, F what all of them use.
LAST_ROWS = {"A": 46, "B": 20, "C": 14, "D": 91, "E": 29, "F": 49}
ROW_IDS = [f"{letter}{number:02}" for letter, last in LAST_ROWS.items() for number in range(1, last + 1)]
ROWS = [line for line in (TABLE + "\n" + FLOWLET_TABLE).splitlines() if line.startswith("|")]


LOCKS = {"threading.Lock", "threading.RLock", "threading.Condition"}


def rows_of(line: str) -> set[str]:
    """The inventory's rows that a line of a table is about, ranges (D45-D48) spelled out."""
    found = set()
    for letter, first, last in re.findall(r"\b([A-F])(\d\d)(?: ?- ?[A-F](\d\d))?\b", line.split("|")[1]):
        found |= {f"{letter}{number:02}" for number in range(int(first), int(last or first) + 1)}
    return found


COVERED: dict[str, str] = {}
for each in ROWS:
    for row in rows_of(each):
        COVERED[row] = f"{COVERED[row]}\n{each}" if row in COVERED else each


def is_known(name: str) -> bool:
    """Return whether a name is a test file, a test, or the beginning of the names of several (written with a star)."""
    return name in TEST_FILES or name in TEST_NAMES or any(each.startswith(name) for each in TEST_NAMES)


# The texts of the files' places below the folders that the runtime's table names them from.
PATHS = [
    f"/{path.relative_to(ROOT)}"
    for top in ("flowlet", "netstack", "bench", "tests")
    for path in (ROOT / top).rglob("*.py")
]


def test_every_test_that_is_named_exists() -> None:
    """Every test that the inventory names for netstack or for flowlet is a test or a file with tests."""
    unknown = [name for name in (*NAMED_TESTS, *FLOWLET_TESTS) if not is_known(name)]

    assert not unknown, f"docs/maintainers/inventory.md names {unknown}, which are neither tests nor files with tests"


def test_every_module_that_is_named_exists() -> None:
    folders = (ROOT / "netstack", ROOT, ROOT / "tests" / "netstack", ROOT / "tests" / "promises")
    missing = [name for name in NAMED_MODULES if not any((folder / name).is_file() for folder in folders)]

    assert not missing, f"docs/maintainers/inventory.md names {missing}"


def test_every_module_that_the_runtimes_table_names_exists() -> None:
    """A module is named with its folders, or as many of them as the table gives."""
    missing = [name for name in FLOWLET_MODULES if not any(path.endswith(f"/{name}") for path in PATHS)]

    assert not missing, f"docs/maintainers/inventory.md names {missing}"


def test_a_name_without_a_test_is_unknown() -> None:
    """A name is known only if it is a test, a file with tests or the beginning of names."""
    assert not is_known("test_that_nobody_wrote")
    assert all(map(is_known, ("test_architecture", "test_a_name_without_a_test_is_unknown", "test_every_test_")))


def test_the_table_is_not_empty() -> None:
    assert len(NAMED_TESTS) > 150
    assert len(NAMED_MODULES) > 15
    assert len(FLOWLET_TESTS) > 40
    assert len(FLOWLET_MODULES) > 5


def test_every_row_of_the_inventory_has_its_place() -> None:
    """Each row has a test, or the reason why it is left out."""
    missing = [row for row in ROW_IDS if row not in COVERED]
    assert not missing, f"{missing} are not in docs/maintainers/inventory.md"

    evidence = ("test_", "left out", "check_invariants")
    unproved = [row for row in ROW_IDS if not any(word in COVERED[row] for word in evidence)]
    assert not unproved, f"{unproved} name neither a test nor why they are left out"


def test_no_row_is_made_up() -> None:
    """No covered row is made up: a typing error would hide a missing row."""
    assert set(COVERED) == set(ROW_IDS)


@pytest.mark.parametrize("package", ["flowlet", "netstack"])
def test_every_lock_is_listed(package: str) -> None:
    """Every lock is listed by the class that makes it, or by its module, and every listed name has a lock."""
    text = (ROOT / package / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = re.search(r"^## (?:Threads and locks|Locks)\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
    assert listed is not None, f"{package}/ARCHITECTURE.md has no list of locks"
    owners = set().union(*(lock_owners(path) for path in (ROOT / package).rglob("*.py") if "testing" not in path.parts))

    # What stands in parentheses or behind the first column explains; the names in front are the list.
    leaves_and_table = re.sub(r"\([^)]*\)", "", listed[1][listed[1].index("leaves") :])
    names = set(re.findall(r"`([^`]+)`", re.sub(r"^(\|[^|]*\|).*", r"\1", leaves_and_table, flags=re.MULTILINE)))

    missing = sorted(owner for owner in owners if f"`{owner}`" not in listed[1])
    assert not missing, f"{package}/ARCHITECTURE.md does not list the locks of {missing}"
    assert not names - owners, f"{package}/ARCHITECTURE.md lists locks of {sorted(names - owners)}, which have none"


@pytest.mark.parametrize("package", ["flowlet", "netstack"])
def test_an_architecture_can_be_read_in_an_hour(package: str) -> None:
    assert len((ROOT / package / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 200


def lock_owners(path: Path) -> set[str]:
    """The classes of a file that make a lock, also as the factory of a field; for a lock of the module: the module."""
    found = set()

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            made = [child.func, *(each.value for each in child.keywords)] if isinstance(child, ast.Call) else ()
            if any(isinstance(each, ast.Attribute) and ast.unparse(each) in LOCKS for each in made):
                found.add(owner)
            visit(child, child.name if isinstance(child, ast.ClassDef) else owner)

    parts = path.relative_to(ROOT).parts
    text = path.read_text(encoding="utf-8")
    if any(lock in text for lock in LOCKS):
        visit(tree_of(text), path.stem if parts[0] == "netstack" else "/".join(parts[1:]))
    return found


def test_ranges_of_rows_are_spelled_out() -> None:
    """Ranges are read in the form in which the tables write them."""
    assert rows_of("| D33 - D35, D37 and C01-C03, 2.A | D99 |") == {"D33", "D34", "D35", "D37", "C01", "C02", "C03"}
