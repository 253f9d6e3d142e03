"""Private names of the product are used by the tests of their own package alone: others would break with every change
inside.

A private name (``_x``) that netstack or flowlet define may be read, patched or imported in the folder of tests that
mirrors its package.  What does so elsewhere is listed with its reason; the list may only become shorter.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from functools import cache, partial
from pathlib import Path
from typing import Final

import pytest

from tests.syntax_trees import nodes_of, parse

ROOT: Final = Path(__file__).resolve().parent.parent
# A private name that is asked of something else than ``self``, or stands in a text; names that are imported.
_PRIVATE: Final = re.compile(r"""(?:(?<!\bself)(?<!\bcls)\.|["'])(_[a-zA-Z0-9]\w*)""")
_IMPORTED: Final = re.compile(r"\bimport\s+(\([^)]*\)|.*)")
_NAME: Final = re.compile(r"\b_[a-zA-Z0-9]\w*")
_OF_NAMED_TUPLES: Final = frozenset({"_asdict", "_fields", "_replace"})
_SEAM: Final = "an interleaving or a state is forced for which no caller has a way"
_SIM: Final = "the simulator stands in for the loop and the sockets, and looks behind every object after each step"
_IDLE: Final = "that a task sleeps, and what wakes it, is seen in its mailbox alone"
_LIMIT: Final = "a limit or a period of another package is made small"
_RIG: Final = "a double takes the place of the object whose parts it needs"
_LEAK: Final = "what is left behind is seen inside alone"
# How many uses there are, and why.
KNOWN: Final[dict[str, tuple[int, str]]] = {
    "tests/flowlet/async_io/test_async_calls.py": (1, _LEAK),
    "tests/flowlet/checkpoint/task/test_in_flight.py": (5, _SEAM),
    "tests/flowlet/mailbox/test_mailbox_executor.py": (1, _LEAK),
    "tests/flowlet/task/fixtures.py": (1, _LIMIT),
    "tests/flowlet/task/test_idle.py": (3, _IDLE),
    "tests/flowlet/task/test_input_runs.py": (2, _LIMIT),
    "tests/flowlet/task/test_lending.py": (5, _IDLE),
    "tests/flowlet/testing/test_operator_harness.py": (4, "the harness unpickles a function, and hands it to nobody"),
    "tests/flowlet/tm/latency/test_latency_policy.py": (
        2,
        "a policy is read as the command would apply it, without a process",
    ),
    "tests/integration/test_frozen_task_manager.py": (
        1,
        "the graph of a job is deployed without the client that would run it",
    ),
    "tests/integration/test_task_manager_leaks.py": (2, _LEAK),
    "tests/netstack/gate/test_poll_many.py": (1, _LEAK),
    "tests/netstack/handlers/attackers.py": (3, _LIMIT),
    "tests/netstack/handlers/test_both_sides.py": (5, _SEAM),
    "tests/netstack/handlers/test_handler_runs.py": (1, _RIG),
    "tests/netstack/handlers/test_hist_handlers.py": (3, _SEAM),
    "tests/netstack/handlers/test_partition_request_queue.py": (1, _SEAM),
    "tests/netstack/handlers/test_relays.py": (1, _RIG),
    "tests/netstack/test_connection_manager.py": (1, _SEAM),
    "tests/netstack/test_offering_network.py": (1, _SEAM),
    "tests/sim/actors.py": (9, _SIM),
    "tests/sim/world.py": (8, _SIM),
}


def private_names_of(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the private names that a module defines: functions, classes, variables, attributes of ``self``."""
    found = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case (
                ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store())
                | ast.Name(id=name, ctx=ast.Store())
            ):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=names)):
                found |= {
                    name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)
                }
            case _:
                pass
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def uses_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """The line and the name of each private name that is asked of something else than ``self``: read, patched or
    imported.
    """
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[first, *others]):
                for each in (first, *others[:1]):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield node.lineno, each.value.rpartition(".")[2]
            case ast.ImportFrom(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case _:
                pass


def packages_by_name() -> dict[str, set[str]]:
    """Return, for each private name of the product, the packages with a module that defines it."""
    found = defaultdict(set)
    for top in ("netstack", "flowlet"):
        for path in (ROOT / top).rglob("*.py"):
            for name in private_names_of(nodes_of(path.read_text(encoding="utf-8"))):
                found[name].add(path.parent.relative_to(ROOT).as_posix())
    return found


def foreign_uses(
    text: str, folder: str, packages: dict[str, set[str]], helpers: Callable[[], Set[str]] = frozenset
) -> list[tuple[int, str]]:
    """The uses, in a file of the folder ``folder`` below ``tests``, of what only other packages define; ``helpers``:
    names of doubles.
    """
    names = {*_PRIVATE.findall(text), *_NAME.findall(" ".join(_IMPORTED.findall(text)))}
    if not any(folder not in packages.get(name, {folder}) for name in names):
        return []  # as with most files, without a look at their trees
    nodes = list(ast.walk(parse(text)))
    own = private_names_of(nodes) | helpers() | _OF_NAMED_TUPLES
    return [
        (line, name)
        for line, name in uses_of(nodes)
        if name in packages and name not in own and folder not in packages[name]
    ]


def helper_names(folder: Path) -> set[str]:
    """Return the private names that doubles and rigs of a folder of tests define for themselves."""
    helpers = [path for path in folder.glob("*.py") if not path.name.startswith("test_")]
    trees = [parse(path.read_text(encoding="utf-8")) for path in helpers]
    return set().union(*(private_names_of(ast.walk(tree)) for tree in trees))


@pytest.mark.slow
def test_private_names_are_used_in_their_own_package() -> None:
    """Tests use private names of their own package alone: ask for something public, or move the test to the tests of
    the module.
    """
    packages = packages_by_name()
    helpers_of = cache(helper_names)
    complaints = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file, folder = path.relative_to(ROOT).as_posix(), path.parent.relative_to(ROOT / "tests").as_posix()
        found = foreign_uses(path.read_text(encoding="utf-8"), folder, packages, partial(helpers_of, path.parent))
        if len(found) > KNOWN.get(file, (0, ""))[0]:
            complaints += [f"{file}:{line} uses {name} of {', '.join(sorted(packages[name]))}" for line, name in found]

    assert not complaints, "\n".join(complaints)


def test_what_is_listed_exists() -> None:
    assert [file for file in KNOWN if not (ROOT / file).is_file()] == []


def test_reading_patching_and_importing_are_uses() -> None:
    """Uses of one's own names, and of public names, do not count."""
    packages = {"_a": {"flowlet/io"}, "_b": {"netstack"}, "_own": {"netstack"}}
    text = """
from flowlet.io.x import _a, b
x._a.b._b
monkeypatch.setattr("flowlet.io._a", 1)
monkeypatch.setattr(x, "_b", 1)
self._a = c._own = 1
def _own(): x.public, x._unknown
"""

    without_own = text.replace("self._a = ", "")
    assert sorted(foreign_uses(without_own, "flowlet/task", packages)) == [
        (2, "_a"),
        (3, "_a"),
        (3, "_b"),
        (4, "_a"),
        (5, "_b"),
    ]
    assert sorted(foreign_uses(without_own, "flowlet/task", packages, lambda: {"_a"})) == [(3, "_b"), (5, "_b")]
    assert sorted(foreign_uses(without_own, "flowlet/io", packages)) == [(3, "_b"), (5, "_b")]
    assert sorted(foreign_uses(text, "flowlet/task", packages)) == [(3, "_b"), (5, "_b")]
