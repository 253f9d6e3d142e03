"""What a user sees of functions that are inlined: nothing."""

import io
import pdb
from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import JobExecutionError

# Pickled by reference: the functions below and the tests see the same ones.
typed = io.StringIO()
shown = io.StringIO()


@pytest.fixture(autouse=True, params=["1", "0"], ids=["fused", "unfused"])
def switch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_FUSE", request.param)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamExecutionEnvironment]:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    made = StreamExecutionEnvironment.get_execution_environment(Configuration())
    made.set_parallelism(1)
    yield made
    made.close()


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return list(results)


def ratio(pair: Any) -> Any:
    return pair[0] / pair[1]


def test_a_failed_job_shows_the_users_line(environment: StreamExecutionEnvironment) -> None:
    """File, line and function; operator and record; and no frame of the engine or of generated code."""
    pairs = environment.from_collection([(1, 1), (1, 2)]).map(lambda pair: (pair[0], pair[1] - 1))

    with pytest.raises(JobExecutionError) as caught:
        collected(pairs.map(ratio).filter(lambda value: value > 1))

    text = str(caught.value)
    assert "while processing the record (1, 0)\n" in text
    assert f'File "{__file__}", line {ratio.__code__.co_firstlineno + 1}, in ratio\n' in text
    assert "    return pair[0] / pair[1]\n           ~~~~~~~~^~~~~~~~~\n" in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert text.count("  File ") == 1


def inspected(pair: Any) -> Any:
    if pair[0] == 3:
        pdb.Pdb(stdin=typed, stdout=shown, nosigint=True, readrc=False).set_trace()
    return pair


def test_a_debugger_can_be_called_in_a_function(environment: StreamExecutionEnvironment) -> None:
    """Between functions that are inlined: it shows the record, the stack and its lines, steps out of the function, and goes on."""
    for stream in (typed, shown):
        stream.seek(0)
        stream.truncate()
    typed.write("print(f'the record is {pair}')\nwhere\nup\nlist\nnext\nnext\nnext\ncontinue\n")
    typed.seek(0)
    pairs = environment.from_collection([(number, number) for number in range(5)]).map(lambda pair: (pair[0], pair[1] * 10))

    found = collected(pairs.map(inspected).filter(lambda pair: pair[0] > 1).map(lambda pair: pair[1]))

    assert found == [20, 30, 40]
    assert "the record is (3, 30)" in shown.getvalue()
    assert "in inspected" in shown.getvalue() or "inspected()" in shown.getvalue()
    assert "Traceback" not in shown.getvalue()
