"""Each row of docs/maintainers/inventory.md says whether a job reaches its mechanism, and names only what exists."""

import ast
import re
from pathlib import Path

from tests.syntax_trees import tree_of
from tests.test_architecture import TEST_FILES, is_known

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "maintainers" / "inventory.md").read_text(encoding="utf-8")
HEAD, _, TABLES = TEXT.partition("\n## netstack\n")
WIRED = re.compile(r"(yes|library only|no): \S")
FILES = [
    f"/{path.relative_to(ROOT)}"
    for top in ("flowlet", "netstack", "bench", "tests", "examples")
    for path in (ROOT / top).rglob("*.py")
]


def cells_of(line: str) -> list[str]:
    r"""The cells of a line of a table; a bar inside code is written ``\|``."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables_of(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Return the tables of a document: the cells of the header, and the cells of each row."""
    found: list[tuple[list[str], list[list[str]]]] = []
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following.startswith("|---"):
            found.append((cells_of(line), []))
        elif line.startswith("|") and not line.startswith("|---"):
            found[-1][1].append(cells_of(line))
    return found


ROWS = [row for _, rows in tables_of(TABLES) for row in rows]
ENTRIES = {row[0]: row[2] for _, rows in tables_of(HEAD) for row in rows}


def entry_of(row: list[str]) -> str:
    """Return the test or file that shows that a job reaches the mechanism of a wired row."""
    return re.split("[,;]", row[-1].removeprefix("yes: "))[0].strip()


def files_named_in(text: str) -> set[str]:
    """Return every Python file that ``text`` names, with as many of its folders as stand there; alternatives in braces
    are spelled out.
    """
    spelled = re.sub(
        r"([\w/]*)\{([\w,]+)\}\.py",
        lambda match: " ".join(f"{match[1]}{name}.py" for name in match[2].split(",")),
        text,
    )
    return set(re.findall(r"[\w/]+\.py\b", spelled))


def methods_of_the_api() -> set[str]:
    """``Class.method`` and ``Class`` of everything in ``flowlet.datastream`` and ``flowlet.common``, and of what
    describes connectors, with what classes inherit.
    """
    classes: dict[str, ast.ClassDef] = {}
    for modules in ("datastream/**/*.py", "common/**/*.py", "connectors/*/api.py", "connectors/database/statement.py"):
        for path in (ROOT / "flowlet").glob(modules):
            classes |= {
                node.name: node
                for node in tree_of(path.read_text(encoding="utf-8")).body
                if isinstance(node, ast.ClassDef)
            }
    return {
        name
        for node in classes.values()
        for name in (node.name, *(f"{node.name}.{each}" for each in methods_of(node, classes)))
    }


def methods_of(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The methods of a class and of its base classes among ``classes``."""
    bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef)}.union(
        *(methods_of(base, classes) for base in bases)
    )


def test_every_row_says_whether_a_job_reaches_it() -> None:
    """The last column says, with one of three words and a reason, whether a job reaches the mechanism."""
    assert len(ROWS) > 390
    assert [header[-1] for header, _ in tables_of(TABLES)] == ["wired"] * len(tables_of(TABLES))

    broken = [
        row[0]
        for header, rows in tables_of(TABLES)
        for row in rows
        if len(row) != len(header) or not WIRED.match(row[-1])
    ]

    assert not broken, f"docs/maintainers/inventory.md: {broken} lack 'yes: ...', 'library only: ...' or 'no: ...'"


def test_a_row_that_is_wired_names_a_run_or_a_method_of_the_api() -> None:
    """Every wired row names a run or a method, and every run of the list is named by a row."""
    named = {entry_of(row) for row in ROWS if row[-1].startswith("yes")}
    methods = {f"`{method}`" for method in methods_of_the_api()}

    unknown = sorted(name for name in named - ENTRIES.keys() if name.split(" with ")[0] not in methods)

    assert not unknown, (
        f"docs/maintainers/inventory.md names {unknown}, "
        "which are neither runs of its first table nor methods of the API"
    )
    assert ENTRIES.keys() <= named, f"no row names {ENTRIES.keys() - named}"


def test_what_is_left_out_is_not_wired() -> None:
    """A row that only says why a mechanism is missing is not wired."""
    wrong = [
        row[0] for row in ROWS if any(cell.startswith("left out") for cell in row[:-1]) and not row[-1].startswith("no")
    ]

    assert not wrong, f"docs/maintainers/inventory.md says of {wrong} that they are left out, and that they are built"


def test_every_file_that_is_named_exists() -> None:
    """Files in every column exist, and those in the prose, too."""
    missing = sorted(name for name in files_named_in(TEXT) if not any(path.endswith(f"/{name}") for path in FILES))

    assert not missing, f"docs/maintainers/inventory.md names {missing}"


def test_every_test_that_is_named_exists() -> None:
    """A test is named by its file, its name, or the beginning of several names."""
    unknown = sorted(name for name in set(re.findall(r"\b(test_\w+)", TEXT)) if not is_known(name))

    assert not unknown, f"docs/maintainers/inventory.md names {unknown}, which are neither tests nor files with tests"
    assert all(Path(name).stem in TEST_FILES for shown in ENTRIES.values() for name in files_named_in(shown))


def test_the_parts_of_a_table() -> None:
    """Tables are split into rows and cells."""
    assert tables_of("| a | b |\n|---|---|\n| 1 | `x \\| y` |\n\n| c |\n|---|\n") == [
        (["a", "b"], [["1", "`x \\| y`"]]),
        (["c"], []),
    ]
    assert files_named_in("sim/{world,mix}.py and buffer/ledger.py `x`") == {
        "sim/world.py",
        "sim/mix.py",
        "buffer/ledger.py",
    }
    assert (
        entry_of(["what", "where", "yes: any job; not this"])
        == entry_of(["what", "where", "yes: any job, with that"])
        == "any job"
    )
    assert [bool(WIRED.match(cell)) for cell in ("yes", "partly: because", "library only: because")] == [
        False,
        False,
        True,
    ]
    assert "DataStream.broadcast" in methods_of_the_api()
