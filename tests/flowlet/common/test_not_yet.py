"""What PyFlink has and this version has not is absent, and its error names the feature and a way out."""

from typing import Any

import pytest

from flowlet.common.not_yet import NotSupportedYetError, missing_attribute
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import FlowletError
from flowlet.operators.user_function import RuntimeContext


@pytest.fixture(params=["environment", "stream", "keyed stream", "runtime context"])
def asked(request: pytest.FixtureRequest) -> tuple[Any, str, str]:
    """An object, a method of PyFlink's that it has not, and the feature."""
    environment = StreamExecutionEnvironment()
    stream = environment.from_collection([1])
    return {
        "environment": (environment, "enable_checkpointing", "checkpoints"),
        "stream": (stream, "window_all", "windows"),
        "keyed stream": (stream.key_by(abs), "window", "windows"),
        "runtime context": (RuntimeContext(None), "get_state", "keyed state"),  # type: ignore[arg-type]  # it is not asked
    }[request.param]


def test_a_later_feature_is_named_and_absent(asked: tuple[Any, str, str]) -> None:
    owner, method, feature = asked

    with pytest.raises(NotSupportedYetError, match=f"no attribute '{method}': {feature} .*yet"):
        getattr(owner, method)
    assert not hasattr(owner, method)


def test_a_name_that_pyflink_has_not_either_is_an_ordinary_error() -> None:
    error = missing_attribute(3, "window_nothing")

    assert type(error) is AttributeError
    assert str(error) == "'int' object has no attribute 'window_nothing'"


def test_the_error_is_of_both_trees() -> None:
    """``except FlowletError`` catches it, and ``hasattr`` does."""
    assert issubclass(NotSupportedYetError, FlowletError)
    assert issubclass(NotSupportedYetError, AttributeError)


def test_broadcast_state_is_refused_where_it_is_asked_for() -> None:
    stream = StreamExecutionEnvironment().from_collection([1])

    with pytest.raises(NotSupportedYetError, match="broadcast state is not supported yet"):
        stream.broadcast(object())
