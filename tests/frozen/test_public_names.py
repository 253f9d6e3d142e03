"""The public names of the product, the paths under which they are imported, and their parameters.

The list is read from the source text by griffe, so every Python gives one list, with and without the extras.  Each name
is then imported.

Items:  ``MODULE:NAME`` with what it is; for what can be called its parameters, as in ``(first, second=1, *,
        named=...)``.  A default that is no plain value is ``...``.  The members of a class stand once, under the first
        of its paths.
Absent: types of parameters and results; names with an underscore in front.
"""

import ast
import gc
import importlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.frozen.frozen_list import FrozenList

if TYPE_CHECKING:
    import griffe

ROOT: Final = Path(__file__).resolve().parent.parent.parent
API: Final = ROOT / "tests" / "pyflink" / "golden" / "api.txt"
DISCOVERED: Final = "pyspark_flowlet"
# Beside the modules of PyFlink that are here.
PACKAGES: Final = (
    "flowlet",
    "flowlet.common",
    "flowlet.datastream",
    "flowlet.datastream.connectors",
    "flowlet.datastream.formats.json_lines",
    "flowlet.datastream.functions",
    "flowlet.datastream.state",
    "flowlet.datastream.window",
    "flowlet.errors",
    "flowlet.ingest",
    "flowlet.metrics",
    "flowlet.records",
    "flowlet.spark",
    "flowlet.state_reader",
    "flowlet.testing",
    "netstack",
    "netstack.errors",
    "netstack.testing",
    DISCOVERED,
)
# They cannot be imported without the extra ``spark``.
NEED_PYSPARK: Final = ("flowlet.spark", DISCOVERED)
_OPERATORS: Final = frozenset(
    f"__{name}__"
    for name in (
        *("call", "contains", "enter", "exit", "aenter", "aexit", "iter", "next", "aiter", "anext"),
        *("len", "getitem", "setitem", "delitem", "add"),
        *("sub", "mul", "or", "and", "neg", "lt", "le", "gt", "ge", "bool", "int", "float", "await"),
    )
)
# Objects that functions are given, which no user makes: only their members are promised.
_GIVEN: Final = frozenset(
    (
        *("RuntimeContext", "FunctionSnapshotContext", "FunctionInitializationContext", "TimerService"),
        *("SourceContext", "SinkContext", "SinkWriterContext", "WriterInitContext", "BucketContext"),
        *("CommitRequest", "Context"),
        *("WindowAssignerContext", "TriggerContext", "OnMergeContext", "EvictorContext", "MergeCallback"),
        *("Counter", "Distribution", "Meter", "MetricGroup"),
    )
)
_STARS: Final = {"variadic positional": "*", "variadic keyword": "**"}


def public_names() -> Iterator[str]:
    found = _modules_of_source()
    seen: set[str] = set()
    for module in sorted(
        (each for each in found if each is not None), key=lambda each: (each.path.count("."), each.path)
    ):
        if module.path != "flowlet":
            yield f"{module.path}  module"
        for name in _names_of(module):
            item = _final(module.members[name])
            yield from _item(f"{module.path}:{name}", item, seen)


def _modules_of_source() -> list[Any]:
    import griffe  # here: the tests of other Pythons do without it

    discovery = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    places = discovery["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    folders = [(ROOT / source).parent for source, target in places.items() if target == f"{DISCOVERED}.py"]
    loader = griffe.GriffeLoader(search_paths=[ROOT, *folders], allow_inspection=False)
    was_enabled = gc.isenabled()
    gc.disable()  # a third of the time otherwise: all of the new objects stay
    try:
        for top in ("flowlet", "netstack", DISCOVERED):
            loader.load(top)
    finally:
        if was_enabled:
            gc.enable()
    loader.resolve_aliases(external=False)
    lines = API.read_text(encoding="utf-8").splitlines()
    of_pyflink = {f"flowlet.{line.partition(':')[0].split(' ')[1]}" for line in lines if not line.startswith("#")}
    names = of_pyflink | set(PACKAGES)
    return [loader.modules_collection[name] for name in sorted(names) if _is_there(loader, name)]


def _is_there(loader: "griffe.GriffeLoader", name: str) -> bool:
    try:
        return bool(loader.modules_collection[name].is_module)
    except KeyError:
        if name in PACKAGES:
            raise
        return False  # PyFlink's alone


def _names_of(module: Any) -> list[str]:
    stub = module.filepath.with_suffix(".pyi")
    if stub.is_file():  # a package whose names are imported late has ``__all__`` from it
        tree = ast.parse(stub.read_text(encoding="utf-8"))
        return sorted(
            each.asname or each.name for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names
        )
    if module.exports is not None:
        return sorted(name for each in module.exports if (name := str(each)) in module.members)
    return sorted(
        name
        for name, each in module.members.items()
        if not name.startswith("_")
        and not each.is_alias
        and not each.is_module
        and (each.kind.value != "attribute" or name.isupper())
    )


def _final(item: Any) -> Any:
    return item.final_target if item.is_alias else item


def _item(path: str, item: Any, seen: set[str]) -> Iterator[str]:
    if item.is_module:
        return
    if not item.is_class:
        yield f"{path}  {_text_of(item)}"
        return
    is_first = item.path not in seen
    seen.add(item.path)
    yield f"{path}  class"
    if not is_first:
        return
    is_given = item.name in _GIVEN
    constructor = None if is_given else _constructor_of(item)
    if constructor is not None:
        yield f"{path}.__init__  {constructor}"
    for name, member in item.all_members.items():
        if name in _OPERATORS:
            yield f"{path}.{name}  operator"
        elif not name.startswith("_") and not (is_given and _is_plain_attribute(_final(member))):
            yield from _item(f"{path}.{name}", _final(member), seen)


def _is_plain_attribute(item: Any) -> bool:
    return item.is_attribute and "property" not in item.labels


def _text_of(item: Any) -> str:
    if not item.is_function:
        return "property" if "property" in item.labels else "attribute"
    kinds = [kind for kind in ("staticmethod", "classmethod", "async") if kind in item.labels]
    is_method = item.parent is not None and item.parent.is_class and "staticmethod" not in kinds
    return " ".join([*kinds, _signature(list(item.parameters)[1 if is_method else 0 :])])


def _constructor_of(item: Any) -> str | None:
    members = item.all_members
    if "__init__" in members:
        return _signature(list(_final(members["__init__"]).parameters)[1:])
    if "__new__" in members:
        return _signature(list(_final(members["__new__"]).parameters)[1:])
    fields: dict[str, str] = {}
    is_made = False
    for each in (*reversed(item.mro()), item):
        is_made |= _is_record(each)
        for field in each.members.values() if _is_record(each) else ():
            is_field = field.is_attribute and field.annotation is not None and "property" not in field.labels
            if is_field and "ClassVar" not in str(field.annotation):
                fields.update(_field(field))
    return f"({', '.join(fields.values())})" if is_made else None


def _is_record(item: Any) -> bool:
    decorators = [str(each.value).partition("(")[0] for each in item.decorators]
    return "dataclass" in decorators or any(
        str(base).rpartition(".")[2] in ("NamedTuple", "Struct") for base in item.bases
    )


def _field(field: Any) -> Iterator[tuple[str, str]]:
    value = None if field.value is None else ast.parse(str(field.value), mode="eval").body
    match value:
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            named = {each.arg: each.value for each in keywords}
            if isinstance(init := named.get("init"), ast.Constant) and init.value is False:
                return
            default = (
                "=..."
                if "default_factory" in named
                else f"={_plain(ast.unparse(named['default']))}"
                if "default" in named
                else ""
            )
        case _:
            default = "" if value is None else f"={_plain(str(field.value))}"
    yield field.name, f"{field.name}{default}"


def _signature(parameters: list[Any]) -> str:
    shown = []
    kinds = ["" if each.kind is None else each.kind.value for each in parameters]
    for index, (each, kind) in enumerate(zip(parameters, kinds, strict=True)):
        before = kinds[:index]
        if kind == "keyword-only" and not {"variadic positional", "keyword-only"} & set(before):
            shown.append("*")
        if kind != "positional-only" and before[-1:] == ["positional-only"]:
            shown.append("/")
        stars = _STARS.get(kind, "")
        shown.append(
            f"{stars}{each.name}" if stars or each.default is None else f"{each.name}={_plain(str(each.default))}"
        )
    return f"({', '.join([*shown, '/'] if kinds[-1:] == ['positional-only'] else shown)})"


def _plain(text: str) -> str:
    try:
        return repr(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return "..."


PUBLIC_NAMES: Final = FrozenList(
    "public_names",
    "Public names, their paths and parameters",
    public_names,
    "A class or function may move, if its public modules go on importing it.",
)


@pytest.mark.slow
def test_public_names_and_their_parameters_stay() -> None:
    pytest.importorskip("griffe")

    PUBLIC_NAMES.check()


@cache
def _stored() -> Mapping[str, str]:
    return PUBLIC_NAMES.read()


@pytest.mark.parametrize("module", sorted({key.partition(":")[0] for key in _stored()}))
def test_each_name_is_found_where_the_list_says(module: str) -> None:
    if module in NEED_PYSPARK:
        pytest.importorskip("pyspark")
    found = importlib.import_module(module)

    names = [key.partition(":")[2] for key in _stored() if key.startswith(f"{module}:")]
    tops = {name.partition(".")[0] for name in names}
    assert [name for name in sorted(tops) if not hasattr(found, name)] == []


def test_star_imports_give_the_same_names() -> None:
    """``from flowlet.datastream import *`` gives all names, in a package that imports late, too."""
    for module in ("flowlet.common", "flowlet.datastream", "flowlet.datastream.window", "netstack"):
        names: dict[str, Any] = {}
        exec(f"from {module} import *", names)
        listed = {
            key.partition(":")[2]
            for key in _stored()
            if key.startswith(f"{module}:") and "." not in key.partition(":")[2]
        }
        assert set(names) - {"__builtins__"} == listed, module
        assert module in sys.modules
