"""Every factory that the product names can be resolved, and takes the arguments that it is given; any other one is
refused when the job starts.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from flowlet.chain.stream_operator import StreamOperator
from flowlet.client.translate import translate
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import JobGraphError
from flowlet.graph.stream_graph import StreamGraph
from flowlet.graph.transformation import OperatorFactory

ROOT = Path(__file__).resolve().parents[3]
NAMING = {
    path: ast.parse(text)
    for path in sorted((ROOT / "flowlet").rglob("*.py"))
    if "OperatorFactory.of(" in (text := path.read_text())
}
FACTORIES = {
    f"{path.relative_to(ROOT)}:{node.lineno}": node
    for path, tree in NAMING.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "OperatorFactory.of"
}
# Of these the name is an argument of the function around them.
NAMED_ELSEWHERE = {place for place, call in FACTORIES.items() if not isinstance(call.args[0], ast.Constant)}
NAMES = {
    str(node.value)
    for tree in NAMING.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.Constant) and re.fullmatch(r"flowlet\.[\w.]+:\w+", str(node.value))
}


def test_the_builders_name_their_factories() -> None:
    """The next test finds factories to check."""
    assert len(FACTORIES.keys() - NAMED_ELSEWHERE) > 20
    assert len(NAMES) > 25
    assert len(NAMED_ELSEWHERE) <= 2


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_is_that_of_a_factory(name: str) -> None:
    module, _, attribute = name.partition(":")

    assert callable(getattr(importlib.import_module(module), attribute))


@pytest.mark.parametrize("place", sorted(FACTORIES.keys() - NAMED_ELSEWHERE))
def test_a_factory_is_there_and_takes_its_arguments(place: str) -> None:
    call = FACTORIES[place]
    (target,) = (ast.literal_eval(each) for each in call.args)
    arguments = {str(each.arg): each.value for each in call.keywords}
    # What reads a source is an argument of the operator's factory, and has no name itself.
    is_operator = "GraphValue.SOURCE" not in map(ast.unparse, arguments.values())
    module, _, name = target.partition(":")

    make = getattr(importlib.import_module(module), name)

    assert callable(make)
    inspect.signature(make).bind(**arguments, **({"name": "x"} if is_operator else {}))


def translated(stream_graph: StreamGraph, *_: object) -> SubmittedJob:
    """Translate the program, which fails."""
    translate(stream_graph)
    raise AssertionError("no operator was refused")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (OperatorFactory.of("flowlet.nowhere:MapOperator"), "cannot be loaded: No module named 'flowlet.nowhere'"),
        (OperatorFactory.of("flowlet.chain:MapOperator"), "cannot be loaded: module 'flowlet.chain' has no attribute"),
        (OperatorFactory.of("MapOperator"), "cannot be loaded: "),
        (
            OperatorFactory.of("flowlet.operators.process_operator:MapOperator", functions=str),
            "takes other arguments than functions, name: missing a required argument: 'function'",
        ),
        (
            OperatorFactory.of(
                "flowlet.sinks.sink_operator:SinkOperator", sink=OperatorFactory.of("flowlet.nowhere:Sink")
            ),
            "'flowlet.nowhere:Sink' cannot be loaded",
        ),
    ],
    ids=["module", "name", "no-module", "arguments", "inner"],
)
def test_a_factory_that_makes_nothing_is_named_with_its_operator(factory: OperatorFactory, message: str) -> None:
    """The error is raised when the job starts."""
    environment = StreamExecutionEnvironment(submit=translated)
    stream = environment.from_collection([1])
    stream._then("strange", factory, stream.get_type())

    with pytest.raises(JobGraphError, match=f"operator 'strange': its factory .*{re.escape(message)}"):
        environment.execute()


def test_an_operator_that_refuses_its_arguments_says_so_itself() -> None:
    environment = StreamExecutionEnvironment(submit=translated)
    stream = environment.from_collection([1])
    factory = OperatorFactory.of("tests.flowlet.datastream.test_operator_factories:refuse", what="this")
    stream._then("strange", factory, stream.get_type())

    with pytest.raises(TypeError, match="refused: this"):
        environment.execute()


def refuse(what: str, *, name: str) -> StreamOperator:
    raise TypeError(f"refused: {what}")
