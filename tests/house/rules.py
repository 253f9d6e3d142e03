"""The rules of the house: each finds what breaks it in the syntax trees of the product, as keys that hold for long.

A key names a module, a class or an import, never a line, so that a list of keys (``known.py``) stays true while code
moves about.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tests.house.floors import room_of, violations_of
from tests.house.promises import mutants_beyond
from tests.mutants.registry import MUTANTS
from tests.syntax_trees import statements_of, tree_of

MIN_LINES: Final = 150
MAX_LINES: Final = 600
MAX_MODULES: Final = 15
MIN_IMPLEMENTERS: Final = 2
_ONE_IMPLEMENTER: Final = "One implementer"
# Faces keep the paths of PyFlink: what they hold is what PyFlink's module of that name holds.
FACES: Final = (
    "flowlet.common",
    "flowlet.datastream",
    "flowlet.errors",
    "flowlet.state_reader",
    "flowlet.former_names",
)
# Names of PyFlink and of Flink that a class of users and one of the runtime have, and errors of both packages.
MAY_BE_TWICE: Final = frozenset(
    {
        "AuthenticationError",
        "CheckpointStorage",
        "ConfigError",
        "RuntimeContext",
        "Source",
        "TypeSerializer",
        "WatermarkOutput",
    }
)
# A system's files stand apart because they are loaded at different places: users, JobManager, tasks.
_OF_A_CONNECTOR: Final = re.compile(r"flowlet\.connectors\.\w+\.(api|split|reader|sink)")
# A docstring begins with a verb or the thing, not with a riddle whose answer stands at its end.
NO_BEGINNINGS: Final = re.compile(
    r"(As|If|It|Nobody|Nothing|Of|See|That|They|Those|What|When|Where|Which|Who|Whoever)\b"
)
# Words that make a reader look back for what they stand for.
BANNED_WORDS: Final = re.compile(r"\b(what comes|the same|of those|Nothing is|Whoever)\b")
Trees = Mapping[str, ast.Module]
"""The modules of the product by name, without packages."""


def is_face(module: str) -> bool:
    return module.endswith(".__main__") or any(module == face or module.startswith(f"{face}.") for face in FACES)


def sizes(sources: Mapping[str, str]) -> Iterator[str]:
    """Modules of more than ``MAX_LINES`` lines, or less than ``MIN_LINES``, which those of a connector may have."""
    for name, text in sources.items():
        num_lines = text.count("\n")
        if num_lines > MAX_LINES and not is_face(name):
            yield f"{name} is long"
        if num_lines < MIN_LINES and not is_face(name) and not _OF_A_CONNECTOR.fullmatch(name):
            yield f"{name} is short"


def package_sizes(sources: Mapping[str, str]) -> Iterator[str]:
    """Packages of more than ``MAX_MODULES`` modules."""
    counts: dict[str, int] = {}
    for name in sources:
        package = name.rpartition(".")[0]
        counts[package] = counts.get(package, 0) + 1
    yield from (package for package, count in counts.items() if count > MAX_MODULES and not is_face(package))


def class_names(trees: Trees) -> Iterator[str]:
    """Names that classes of several modules have."""
    homes: dict[str, list[str]] = {}
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    for name, modules in homes.items():
        if len(modules) > 1 and name not in MAY_BE_TWICE:
            yield f"{name}: {', '.join(sorted(modules))}"


def protocols(trees: Trees) -> Iterator[str]:
    """Protocols with methods that less than two classes of the product have, all of them.

    A docstring that says "One implementer: WHY" excuses one.
    """
    every = [
        (name, node) for name, tree in trees.items() for node in statements_of(tree) if isinstance(node, ast.ClassDef)
    ]
    members = {node: set(_members(node)) for _, node in every if not _is_protocol(node)}
    for name, node in every:
        asked = set(_members(node)) - {"__slots__"}
        if not _is_protocol(node) or asked == {"__call__"} or _ONE_IMPLEMENTER in (ast.get_docstring(node) or ""):
            continue
        if sum(asked <= offered for offered in members.values()) < MIN_IMPLEMENTERS:
            yield f"{name}.{node.name}"


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0].rpartition(".")[2] == "Protocol" for base in node.bases)


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Names of methods, fields and what methods set on an object."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each.name
        elif isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield each.id if isinstance(each, ast.Name) else each.attr


def tuple_assignments(trees: Trees) -> Iterator[str]:
    """Functions that assign several values in one statement, ``a, b = x, y``.

    An exchange is none, nor is what stands in a module with a hot path.
    """
    for name, tree in trees.items():
        if "Hot path." in (ast.get_docstring(tree) or ""):
            continue
        for where, node in _with_function(tree, ast.expr):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            values = {ast.unparse(each) for each in node.value.elts}
            if any(isinstance(each, ast.Tuple) and set(map(ast.unparse, each.elts)) != values for each in node.targets):
                yield f"{name}.{where}, line {node.lineno}"


def nested_conditionals(trees: Trees) -> Iterator[str]:
    """Functions with a conditional expression inside another one."""
    for name, tree in trees.items():
        for where, node in _with_function(tree):
            if isinstance(node, ast.IfExp) and sum(isinstance(each, ast.IfExp) for each in ast.walk(node)) > 1:
                yield f"{name}.{where}, line {node.lineno}"


def _with_function(tree: ast.Module, but: type[ast.AST] | None = None) -> Iterator[tuple[str, ast.AST]]:
    """Each node but classes and functions, and but those of the kind ``but`` with all below, and where it stands."""
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        parent, where = waiting.pop()
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                waiting.append((child, f"{where}.{child.name}" if where else child.name))
            elif but is None or not isinstance(child, but):
                yield where or "(module)", child
                waiting.append((child, where))


def docstrings(trees: Trees) -> Iterator[str]:
    """Docstrings that begin with neither a verb nor the thing, or have a word that is banned."""
    for name, tree in trees.items():
        for where, node in _documented(tree, name):
            text = ast.get_docstring(node) or ""
            if NO_BEGINNINGS.match(text) or BANNED_WORDS.search(" ".join(text.split())):
                yield where


def _documented(
    node: ast.AST, where: str
) -> Iterator[tuple[str, ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef | ast.Module]]:
    """Whatever can have a docstring, with its name."""
    if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}"
    if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef | ast.Module):
        yield where, node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from _documented(child, where)


def comments(sources: Mapping[str, str]) -> Iterator[str]:
    """Modules with a comment that has a banned word."""
    for name, text in sources.items():
        if any(BANNED_WORDS.search(line.partition("#")[2]) for line in text.splitlines()):
            yield name


def homeless(names: Iterable[str]) -> Iterator[str]:
    """Modules that lie in no room."""
    yield from (name for name in names if room_of(name) is None)


def rules(
    sources: Mapping[str, str], edges: Mapping[str, set[str]], packages: frozenset[str]
) -> dict[str, Callable[[], Iterable[str]]]:
    files = {name: text for name, text in sources.items() if name not in packages}
    trees = {name: tree_of(text) for name, text in files.items()}
    inside = {name: targets - packages for name, targets in edges.items() if name not in packages}
    return {
        "module_sizes": lambda: sizes(files),
        "package_sizes": lambda: package_sizes(files),
        "class_names": lambda: class_names(trees),
        "protocols": lambda: protocols(trees),
        "tuple_assignments": lambda: tuple_assignments(trees),
        "nested_conditionals": lambda: nested_conditionals(trees),
        "docstrings": lambda: docstrings(trees),
        "comments": lambda: comments(files),
        "floors": lambda: violations_of(inside),
        "rooms": lambda: homeless(files),
        "promises": lambda: mutants_beyond({each.id: each.killed_by.partition("::")[0] for each in MUTANTS}),
    }
