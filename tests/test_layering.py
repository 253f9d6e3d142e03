"""The import rules of the two packages, checked on the syntax tree, without imports.

The rules of the house, floors, sizes and names, are in ``tests/house``.

The first half is the checker: it takes a mapping from module name to source text and returns complaints, so that the
second half can test it with small bad samples before it is let loose on the real packages.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.house.known import complaint
from tests.house.rules import rules
from tests.syntax_trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("netstack", "flowlet")
SIDES = ("pure", "loop", "task", "shared", "any")
# What a module of a side may import.  ``shared`` is where loop and task meet.
MAY_IMPORT = {
    "pure": {"pure"},
    "loop": {"pure", "loop", "shared"},
    "task": {"pure", "task", "shared"},
    "shared": set(SIDES),
    "any": set(SIDES),
}
NOT_PURE = {
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "queue",
    "random",
    "select",
    "selectors",
    "socket",
    "structlog",
}
NOT_PURE |= {"subprocess", "threading", "time", "aiohttp", "uvloop"}
GRAPH_BUILDERS = (
    "flowlet.common",
    "flowlet.datastream",
    "flowlet.graph",
    *sorted(f"flowlet.connectors.{path.parent.name}.api" for path in ROOT.glob("flowlet/connectors/*/api.py")),
)
# What makes modules quick to import is no runtime: it imports the standard library alone.
NO_RUNTIME = {"netstack.late"}
RUNTIME = (
    "netstack",
    "flowlet.jm",
    "flowlet.tm",
    "flowlet.client",
    "flowlet.task",
    "flowlet.operators",
    "flowlet.rpc",
    "flowlet.cli",
)
PICKLES = {"pickle", "cloudpickle", "dill"}
# The last one has a twin with PyFlink's name; a connector is a folder with these four.
MAY_BE_TWICE = {"errors", "__main__", "api", "reader", "sink", "split", "checkpoint_storage"}
_FINDS_SPLITS = re.compile(r"flowlet\.connectors\.\w+\.split")
_DESCRIBES = re.compile(r"flowlet\.connectors\.\w+\.(api|statement)")
_SIDE_LINE = re.compile(r"^Side:\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """One import statement's target, as written."""

    module: str
    name: str | None  # of ``from module import name``
    line: int
    level: int
    at_import_time: bool


@dataclass
class Module:
    """The checker's knowledge of one file."""

    name: str
    tree: ast.Module
    is_package: bool
    imports: list[Import] = field(default_factory=list)

    @property
    def side(self) -> str | None:
        found = _SIDE_LINE.search(ast.get_docstring(self.tree) or "")
        return found.group(1) if found else None


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imports(node: ast.AST, *, at_import_time: bool = True, of_package: bool = False) -> Iterator[Import]:
    """Yield every import below ``node`` that is carried out at some time: those under ``TYPE_CHECKING`` are not, but
    for those of a package.

    A package names for type checkers what it imports when somebody asks for it (``netstack.late.late_names``).
    """
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.expr():
                pass  # no statement stands in an expression, and most nodes are expressions
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name, None, child.lineno, 0, at_import_time)
            case ast.ImportFrom(module=module, names=names, level=level):
                for alias in names:
                    yield Import(module or "", alias.name, child.lineno, level, at_import_time)
            case ast.If(test=test, body=body, orelse=orelse) if _is_type_checking(test):
                if of_package:
                    yield from _imports(ast.Module(body, []), at_import_time=False)
                for statement in orelse:
                    yield from _imports(ast.Module([statement], []), at_import_time=at_import_time)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _imports(child, at_import_time=False)
            case _:
                yield from _imports(child, at_import_time=at_import_time)


def _is_within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


class Checker:
    """Complaints about a set of modules; each is one line that starts with ``module:line``."""

    def __init__(self, sources: Mapping[str, str], packages: frozenset[str] = frozenset()) -> None:
        self.modules = {name: Module(name, tree_of(text), name in packages) for name, text in sources.items()}
        for module in self.modules.values():
            module.imports = list(_imports(module.tree, of_package=module.is_package))

    def resolve(self, item: Import) -> str | None:
        """The project module that an import really reaches, through the re-exports of packages;
        None if it is not ours.
        """
        if item.name is not None and f"{item.module}.{item.name}" in self.modules:
            return f"{item.module}.{item.name}"
        module = self.modules.get(item.module)
        if module is None:
            return None
        if module.is_package and item.name is not None:
            for inner in module.imports:
                if inner.name == item.name and inner.module != item.module:
                    return self.resolve(inner)
        return item.module

    def complaints(self) -> list[str]:
        found: list[str] = []
        for module in self.modules.values():
            found += self._of_shape(module)
            for item in module.imports:
                found += self._of_import(module, item)
        return [*found, *self._of_pickles(), *self._of_cycles(), *self._of_packages()]

    def _of_shape(self, module: Module) -> Iterator[str]:
        if module.side is None and not module.is_package:
            yield f"{module.name}:1 has no 'Side:' line in its docstring"
        if module.side is not None and module.side not in SIDES:
            yield f"{module.name}:1 names the side {module.side!r}, which does not exist"
        if module.is_package:
            for statement in module.tree.body:
                if not _is_reexport(statement):
                    yield f"{module.name}:{statement.lineno} does something in an __init__, which may only re-export"

    def _of_import(self, module: Module, item: Import) -> Iterator[str]:
        at = f"{module.name}:{item.line}"
        if item.level:
            yield f"{at} imports relatively"
            return
        if _is_within(module.name, "netstack") and _is_within(item.module, "flowlet"):
            yield f"{at} netstack imports flowlet"
        if _is_within(item.module, "pyspark") and not _is_within(module.name, "flowlet.spark"):
            yield f"{at} imports pyspark outside flowlet.spark"
        if module.side == "pure" and item.module.split(".")[0] in NOT_PURE:
            yield f"{at} is pure and imports {item.module}"
        target = self.resolve(item)
        if target is None:
            if _is_within(item.module, *PACKAGES) and len(self.modules) > 20:
                yield f"{at} imports {item.module}, which does not exist"
            return
        side = self.modules[target].side
        if module.side in MAY_IMPORT and side in MAY_IMPORT and side not in MAY_IMPORT[module.side]:
            yield f"{at} is {module.side} and imports {target}, which is {side}"
        builds = _is_within(module.name, *GRAPH_BUILDERS) and target not in NO_RUNTIME
        if item.at_import_time and builds and _is_within(target, *RUNTIME):
            yield f"{at} builds graphs and imports the runtime module {target}"

    def _of_pickles(self) -> Iterator[str]:
        users = {name: line for name, module in self.modules.items() if (line := _unpickles(module)) is not None}
        outside = sorted(name for name in users if not _is_within(name, "flowlet.serde"))
        if len(outside) > 1:
            yield (
                f"{outside[1]}:{users[outside[1]]} unpickles, and so does {outside[0]}: only one module besides "
                "serde may"
            )

    def _of_cycles(self) -> Iterator[str]:
        for path in _cycles(self.edges()):
            yield f"{path[-1]}:1 is part of the import cycle {' -> '.join(path)}"

    def _of_packages(self) -> Iterator[str]:
        """Yield cycles between packages, and names that two files have."""
        edges: dict[str, set[str]] = {}
        for name, targets in self.edges().items():
            if not self.modules[name].is_package:
                inside = {package_of(target) for target in targets if not self.modules[target].is_package}
                edges.setdefault(package_of(name), set()).update(inside - {package_of(name)})
        for path in _cycles(edges):
            # Else the modules are a cycle, too.
            if any(name not in self.modules or self.modules[name].is_package for name in path):
                yield f"{path[-1]}:1 is part of the cycle of packages {' -> '.join(path)}"
        files = [name for name, module in self.modules.items() if not module.is_package]
        for base, names in _grouped(files, by=lambda name: name.rpartition(".")[2]):
            if len(names) > 1 and base not in MAY_BE_TWICE:
                yield f"{names[1]}:1 has the base name of {names[0]}"

    def edges(self) -> dict[str, set[str]]:
        return {
            name: {t for item in module.imports if (t := self.resolve(item)) and t != name}
            for name, module in self.modules.items()
        }


def _cycles(edges: Mapping[str, set[str]]) -> Iterator[tuple[str, ...]]:
    """Yield paths that end where they begin; at least one of each knot."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if name in path:
            yield (*path[path.index(name) :], name)
            return
        if name in done:
            return
        for target in sorted(edges.get(name, ())):
            yield from visit(target, (*path, name))
        done.add(name)

    for name in sorted(edges):
        yield from visit(name, ())


def package_of(module: str) -> str:
    """The folder of a module; what lies in the root of ``netstack`` or ``flowlet`` stands for itself.

    What finds the splits of a connector is with the other enumerators: of a connector the JobManager loads only that.
    """
    if _FINDS_SPLITS.fullmatch(module):
        return "flowlet.splits"
    if _DESCRIBES.fullmatch(module):
        return "flowlet.datastream.connectors"  # where programs find it
    package = module.rpartition(".")[0]
    return module if package in PACKAGES else package


def _grouped(names: Iterable[str], by: Callable[[str], str]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(by(name), []).append(name)
    return list(groups.items())


def _is_reexport(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
        # A hook for names that are missing or imported late; nothing is looked up before somebody asks for one.
        case ast.Assign(targets=[target]) if ast.unparse(target) == "(__getattr__, __dir__, __all__)":
            return True
        case ast.If(test=test, body=[ast.Assign(targets=[target])], orelse=[]) if (
            ast.unparse(test) == "not TYPE_CHECKING" and ast.unparse(target) == "__getattr__"
        ):
            return True
        case ast.If(test=test, body=body, orelse=[]) if _is_type_checking(test):
            return all(isinstance(each, ast.ImportFrom) for each in body)
        case ast.Expr(value=ast.Call(func=ast.Name(id="explain_missing_modules"))):
            return True
        case (
            ast.Assign(targets=[ast.Name(id="__all__" | "__version__")])
            | ast.AnnAssign(target=ast.Name(id="__all__" | "__version__"))
        ):
            return True
        case _:
            return False


def _unpickles(user: Module) -> int | None:
    """The line where the module opens a pickle, if it does."""
    if not any(item.module in PICKLES for item in user.imports):
        return None
    for node in ast.walk(user.tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr="loads" | "load" | "Unpickler") if module in PICKLES:
                return node.lineno
            case ast.ImportFrom(module=str(module), names=names) if module in PICKLES:
                if {alias.name for alias in names} & {"loads", "load", "Unpickler", "*"}:
                    return node.lineno
    return None


def sources_of(root: Path) -> tuple[dict[str, str], frozenset[str]]:
    """The text of each module of a checkout by its name, and which of them are packages."""
    sources, packages = {}, set()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
                packages.add(".".join(parts))
            sources[".".join(parts)] = path.read_text(encoding="utf-8") + _stub_of(path)
    return sources, frozenset(packages)


def _stub_of(path: Path) -> str:
    """Return the imports in the stub of a package, as a block for type checkers; no text if there is no stub."""
    stub = path.with_suffix(".pyi")
    lines = stub.read_text(encoding="utf-8").splitlines() if stub.exists() else []
    return "".join(f"{line}\n" for line in ("if TYPE_CHECKING:", *(f"    {line}" for line in lines))) if lines else ""


@cache
def checker_of_product() -> Checker:
    """Return the checker of netstack and flowlet, made once in a process: nobody may change it."""
    return Checker(*sources_of(ROOT))


def complaints_about(packages: tuple[str, ...] = (), /, **sources: str) -> list[str]:
    """Return complaints about samples; ``a__b`` stands for the module ``a.b``."""
    return Checker({name.replace("__", "."): text for name, text in sources.items()}, frozenset(packages)).complaints()


PURE = '"""A.\n\nSide: pure.\n"""\n'
LOOP = '"""A.\n\nSide:       loop.\n"""\n'
TASK = '"""A.\n\nSide:  task\n"""\n'
SHARED = '"""A.\n\nSide: shared.  Any thread.\n"""\n'


@pytest.mark.slow
def test_the_packages_keep_the_import_rules() -> None:
    """No module of netstack or flowlet breaks one of the rules below."""
    assert checker_of_product().complaints() == []


@pytest.mark.slow
def test_the_architecture_has_the_order_of_the_packages() -> None:
    """Each package of flowlet stands behind those that it imports, in another group."""
    page = (ROOT / "flowlet" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    order = page.partition("From the bottom, ")[2].partition("\n\n")[0]
    groups = [re.findall("`(\\w+)`", group) for group in order.split(";")]
    place = {f"flowlet.{name}": number for number, group in enumerate(groups) for name in group}
    checker = checker_of_product()
    packages = {name for name, module in checker.modules.items() if module.is_package}
    pairs = {
        (package_of(importer), package_of(target))
        for importer, targets in checker.edges().items()
        for target in targets - packages
    }

    wrong = [
        f"{importer} imports {target}"
        for importer, target in sorted(pairs)
        if importer != target and importer in place and target in place and place[importer] <= place[target]
    ]
    rooms = {f"flowlet.{path.parent.name}" for path in (ROOT / "flowlet").glob("*/__init__.py")}
    assert wrong == []
    assert rooms == set(place)


RULES: Final = (
    "module_sizes",
    "package_sizes",
    "class_names",
    "protocols",
    "tuple_assignments",
    "docstrings",
    "comments",
    "nested_conditionals",
    "floors",
    "rooms",
    "promises",
)


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    """Return the places that break each rule of the house today."""
    sources, packages = sources_of(ROOT)
    return {rule: set(find()) for rule, find in rules(sources, checker_of_product().edges(), packages).items()}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_what_breaks_a_rule_of_the_house_only_gets_less(rule: str, found: dict[str, set[str]]) -> None:
    """The lists in ``tests/house/lists`` name all places that break a rule today, and only get shorter."""
    told = complaint(rule, found[rule])

    assert not told, told
    assert set(found) == set(RULES)


def test_a_module_without_a_side_line_is_named() -> None:
    assert complaints_about(flowlet__a='"""Docs."""\n') == ["flowlet.a:1 has no 'Side:' line in its docstring"]


def test_an_unknown_side_is_named() -> None:
    assert complaints_about(flowlet__a='"""A.\n\nSide: left.\n"""\n') == [
        "flowlet.a:1 names the side 'left', which does not exist"
    ]


def test_netstack_never_imports_flowlet() -> None:
    found = complaints_about(netstack__a=SHARED + "def f():\n    from flowlet import b\n", flowlet__b=PURE)

    assert found == ["netstack.a:6 netstack imports flowlet"]


@pytest.mark.parametrize(
    "statement", ["import asyncio", "from threading import Lock", "import concurrent.futures", "import time as t"]
)
def test_pure_modules_import_no_clock_thread_or_loop(statement: str) -> None:
    """No pure module imports them, not even inside a function."""
    found = complaints_about(flowlet__a=f"{PURE}def f() -> None:\n    {statement}\n")

    assert found == [f"flowlet.a:6 is pure and imports {statement.split()[1]}"]


@pytest.mark.parametrize(
    ("importer", "imported"), [(PURE, LOOP), (PURE, TASK), (PURE, SHARED), (LOOP, TASK), (TASK, LOOP)]
)
def test_sides_that_must_not_meet(importer: str, imported: str) -> None:
    """Pure knows only pure; loop and task meet only in shared modules."""
    found = complaints_about(flowlet__a=importer + "from flowlet.b import x\n", flowlet__b=imported)

    assert len(found) == 1
    assert found[0].startswith("flowlet.a:5 is ")


@pytest.mark.parametrize(
    ("importer", "imported"),
    [(PURE, PURE), (LOOP, SHARED), (TASK, SHARED), (SHARED, LOOP), (SHARED, TASK), (LOOP, LOOP), (TASK, PURE)],
)
def test_sides_that_may_meet(importer: str, imported: str) -> None:
    assert complaints_about(flowlet__a=importer + "import flowlet.b\n", flowlet__b=imported) == []


def test_imports_for_type_checkers_alone_do_not_count() -> None:
    text = PURE + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio\nelse:\n    import time\n"

    assert complaints_about(flowlet__a=text) == ["flowlet.a:9 is pure and imports time"]


def test_a_reexport_is_followed_to_its_origin() -> None:
    """``from package import name`` is judged by the module that defines the name."""
    sources = {
        "flowlet__p": '"""P."""\nfrom flowlet.p.b import x\n',
        "flowlet__p__b": TASK,
        "flowlet__a": LOOP + "from flowlet.p import x\n",
    }

    found = complaints_about(("flowlet.p",), **sources)

    assert found == ["flowlet.a:5 is loop and imports flowlet.p.b, which is task"]


def test_an_init_module_may_only_reexport() -> None:
    text = '"""P."""\nimport os\n__all__ = ["os"]\nos.environ.clear()\n'

    assert complaints_about(("flowlet",), flowlet=text) == [
        "flowlet:4 does something in an __init__, which may only re-export"
    ]


@pytest.mark.parametrize("package", ["common", "datastream", "graph"])
@pytest.mark.parametrize("runtime", ["flowlet__task__x", "flowlet__client__x", "netstack__x"])
def test_graph_builders_import_no_runtime_when_imported(package: str, runtime: str) -> None:
    """Graph builders may reach the runtime later, inside a call."""
    target = runtime.replace("__", ".")
    early = {f"flowlet__{package}__a": f"{PURE}from {target} import y\n", runtime: PURE}
    late = {f"flowlet__{package}__a": f"{PURE}def f() -> None:\n    from {target} import y\n", runtime: PURE}

    assert complaints_about(**early) == [f"flowlet.{package}.a:5 builds graphs and imports the runtime module {target}"]
    assert complaints_about(**late) == []


def test_only_the_spark_package_knows_pyspark() -> None:
    text = SHARED + "from pyspark.sql import Row\n"

    assert complaints_about(flowlet__spark__a=text) == []
    assert complaints_about(flowlet__client__a=text) == ["flowlet.client.a:5 imports pyspark outside flowlet.spark"]


@pytest.mark.parametrize(
    "text",
    ["import pickle\npickle.loads(b'')\n", "from cloudpickle import loads\n", "import pickle\nx = pickle.Unpickler\n"],
)
def test_one_module_besides_serde_opens_pickles(text: str) -> None:
    one = complaints_about(flowlet__serde__a=TASK + text, flowlet__tm__b=TASK + text)
    two = complaints_about(flowlet__jm__a=TASK + text, flowlet__tm__b=TASK + text)

    assert one == []
    assert len(two) == 1
    assert "only one module besides serde may" in two[0]


def test_import_cycles_are_shown_as_a_path() -> None:
    """Cycles that are closed inside a function are shown, too."""
    found = complaints_about(
        flowlet__a=PURE + "import flowlet.b\n", flowlet__b=PURE + "def f() -> None:\n    import flowlet.a\n"
    )

    assert found == ["flowlet.a:1 is part of the import cycle flowlet.a -> flowlet.b -> flowlet.a"]


def test_cycles_of_packages_are_shown_as_a_path() -> None:
    """Cycles of packages are shown although no module imports itself by way of others."""
    found = complaints_about(
        flowlet__p__a=PURE + "import flowlet.q.b\n",
        flowlet__q__b=PURE,
        flowlet__q__c=PURE + "import flowlet.p.d\n",
        flowlet__p__d=PURE,
    )

    assert found == ["flowlet.p:1 is part of the cycle of packages flowlet.p -> flowlet.q -> flowlet.p"]


def test_modules_in_the_root_are_no_package() -> None:
    """All modules may import ``errors``, and a root module may import a package."""
    sources = {
        "flowlet__a": PURE + "import flowlet.p.b\n",
        "flowlet__p__b": PURE + "import flowlet.errors\n",
        "flowlet__errors": PURE,
    }

    assert complaints_about(**sources) == []


def test_no_two_files_have_one_name() -> None:
    """File names are unique but for ``errors``."""
    sources = {"flowlet__p__a": PURE, "netstack__a": PURE, "flowlet__errors": PURE, "netstack__errors": PURE}

    assert complaints_about(**sources) == ["netstack.a:1 has the base name of flowlet.p.a"]


def test_relative_imports_are_refused() -> None:
    assert complaints_about(flowlet__a=PURE + "from . import b\n") == ["flowlet.a:5 imports relatively"]


def _lost_arguments(text: str) -> Iterator[str]:
    """Yield functions that take any arguments and make no use of them; functions of protocols and overloads have no
    body to do so.
    """
    for node in nodes_of(text):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or all(map(_says_nothing, node.body)):
            continue
        if node.args.vararg is node.args.kwarg is None:
            continue
        used = {each.id for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.Name)}
        for taken in (node.args.vararg, node.args.kwarg):
            if taken is not None and not taken.arg.startswith("_") and taken.arg not in used:
                yield f"{node.name} loses {taken.arg}"


def _says_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("def f(*args: int, **kwargs: int) -> None:\n    g(*args)\n", ["f loses kwargs"]),
        ("async def f(*args: int) -> None:\n    pass\n", ["f loses args"]),
        ("def f(*args: int) -> None:\n    '''Of a protocol.'''\n", []),
        ("def f(*_: object) -> None:\n    g()\n", []),
    ],
)
def test_lost_arguments_are_named(text: str, lost: list[str]) -> None:
    assert list(_lost_arguments(text)) == lost


def test_no_function_takes_arguments_that_it_loses() -> None:
    """No signature promises to pass arguments on, and loses them: type checkers and callers would believe it."""
    sources, _ = sources_of(ROOT)

    assert [f"{name}: {lost}" for name, text in sources.items() for lost in _lost_arguments(text)] == []
