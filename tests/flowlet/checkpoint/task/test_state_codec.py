"""States come back as they were; what cannot is refused with operator and class."""

import sys
import threading
import tracemalloc
import types
from dataclasses import dataclass, fields
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.checkpoint.task.snapshots import OperatorState, SubtaskState
from flowlet.checkpoint.task.state_codec import decode_state, encode_state
from flowlet.errors import SerdeError, StateRestoreError
from flowlet.state.state_snapshots import (
    KeyedStateSnapshot,
    OperatorStateRows,
    OperatorStateSnapshot,
    Redistribution,
    StateDescription,
    StateKind,
    StateRows,
)


@dataclass
class Point:
    x: int
    parts: list[int]


class CountingLock:
    num_entered = 0

    def __enter__(self) -> None:
        self.num_entered += 1

    def __exit__(self, *_: object) -> None:
        return


def state_of(*owns: object) -> SubtaskState:
    return SubtaskState({f"{index:032x}": OperatorState(own) for index, own in enumerate(owns)})


def own_of(content: bytes) -> object:
    (state,) = decode_state(content).operators.values()
    assert isinstance(state, OperatorState)
    return state.own


@pytest.mark.parametrize(
    "state",
    [
        SubtaskState(
            {
                "b": OperatorState({"k": [Point(1, [2])]}, {3: {"timers": [(4, "k")]}}, 5),
                "a": OperatorState(None, {1: {"t": ()}}),
            },
            is_finished=True,
        ),
        SubtaskState(),
    ],
    ids=["two operators", "empty"],
)
def test_all_parts_come_back_in_their_order(state: SubtaskState) -> None:
    decoded = decode_state(encode_state(state))

    assert decoded == state
    assert list(decoded.operators) == list(state.operators)


def test_arrays_come_back_writable_and_on_their_own() -> None:
    """An operator goes on computing in them; their bytes are not in the pickle."""
    array = np.arange(100_000, dtype=np.int64)
    fortran = np.asfortranarray(np.arange(10_000.0).reshape(100, 100))
    content = encode_state(
        state_of({"a": array, "f": fortran, "every other": array[::2], "small": array[:3], "bytes": bytearray(8000)})
    )

    first, second = own_of(content), own_of(content)

    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert np.array_equal(first["a"], array)
    assert np.array_equal(first["f"], fortran)
    assert np.array_equal(first["every other"], array[::2])
    assert np.array_equal(first["small"], array[:3])
    assert first["bytes"] == bytearray(8000)
    first["a"][0] = -1
    assert second["a"][0] == 0
    assert (
        array.nbytes + fortran.nbytes + array.nbytes // 2
        < len(content)
        < 1.03 * (array.nbytes * 1.5 + fortran.nbytes + 8000)
    )


def test_large_arrays_are_copied_once() -> None:
    """The bytes are the only copy: a task manager's memory holds state twice during a checkpoint, not three times."""
    state = state_of(np.zeros(4_000_000, dtype=np.int8))
    encode_state(state)

    tracemalloc.start()
    try:
        content = encode_state(state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1.2 * len(content)


@pytest.mark.parametrize("size", [0, 1, 1000, 65_535, 65_536, 65_537, 1_000_000])
def test_values_of_any_size_come_back(size: int) -> None:
    own = [
        b"b" * size,
        "s" * size,
        bytearray(size),
        list(range(size // 10)),
        np.zeros(size, dtype=np.int8),
        {"after": 1},
    ]

    content = encode_state(state_of(own))

    assert repr(own_of(content)) == repr(own)


def of_main(monkeypatch: pytest.MonkeyPatch) -> type:
    """Make a class of the main module, which is gone when the test ends."""
    made = types.new_class("OfMain", exec_body=lambda namespace: namespace.update(__module__="__main__"))
    monkeypatch.setattr(sys.modules["__main__"], "OfMain", made, raising=False)
    return made


def test_classes_of_the_main_module_come_back_where_the_main_module_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the main module may begin in one piece of a pickle and end in the next, too."""
    made = of_main(monkeypatch)
    contents = [encode_state(state_of([b"x" * size, made()])) for size in (0, *range(65_536 - 80, 65_536 + 20))]
    monkeypatch.delattr(sys.modules["__main__"], "OfMain")

    for content in contents:
        own = own_of(content)
        assert isinstance(own, list)
        assert type(own[1]).__name__ == "OfMain"


def test_modules_are_imported_one_task_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that enter a circle of imports at different places would fail, so all take a job's lock."""
    content = encode_state(state_of(Point(1, [])))
    lock = CountingLock()
    monkeypatch.setattr("flowlet.checkpoint.task.state_codec.OPENING", lock)

    assert own_of(content) == Point(1, [])

    assert lock.num_entered > 0


def test_what_is_the_same_object_in_a_state_stays_the_same() -> None:
    shared = np.arange(1000)

    own = own_of(encode_state(state_of([shared, shared])))

    assert isinstance(own, list)
    assert own[0] is own[1]


def test_functions_of_users_come_back() -> None:
    """Pickle cannot pickle them, cloudpickle can."""
    own = own_of(encode_state(state_of(lambda x: x + 1)))

    assert callable(own)
    assert own(1) == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [(None, "operator 0{31}1"), ({f"{1:032x}": "count words"}, "operator 'count words'")],
    ids=["by its id", "by its name"],
)
def test_an_operator_whose_state_cannot_be_pickled_is_named(names: dict[str, str] | None, said: str) -> None:
    with pytest.raises(
        SerdeError,
        match=rf"the state of {said} cannot be pickled: TypeError: cannot pickle '_thread.lock' object; keep",
    ):
        encode_state(state_of(1, threading.Lock()), names)


def module_with_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("made_up_module")
    exec("class Model:\n  pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "made_up_module", module)
    return module


def test_a_missing_module_is_named_with_its_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_with_model(monkeypatch)
    content = encode_state(state_of(1, module.Model()), None)
    del module.Model

    with pytest.raises(
        StateRestoreError,
        match=r"^the state of operator 'a b' needs made_up_module\.Model, which this process does not find",
    ):
        decode_state(content, {f"{1:032x}": "a b"})

    monkeypatch.delitem(sys.modules, "made_up_module")
    with pytest.raises(StateRestoreError, match=r"operator 0{31}1 needs made_up_module.Model, .*ModuleNotFoundError"):
        decode_state(content)


class Fussy:
    def __setstate__(self, state: object) -> None:
        raise ValueError("no field 'x'")


def test_a_class_that_refuses_its_state_is_named_with_its_operator() -> None:
    fussy = Fussy()
    fussy.__dict__["x"] = 1

    with pytest.raises(
        StateRestoreError, match=r"the state of operator 0+ cannot be read: ValueError: no field 'x'; was one"
    ):
        decode_state(encode_state(state_of(fussy)))


def test_another_version_is_refused() -> None:
    content = bytearray(encode_state(state_of(1)))
    content[5] = 2

    with pytest.raises(
        StateRestoreError, match="format version 2, this flowlet reads 1: restore it with the flowlet that wrote it"
    ):
        decode_state(bytes(content))


WHOLE = encode_state(SubtaskState({"a": OperatorState({"k": np.arange(1000)}), "b": OperatorState(b"x")}))


@given(size=st.integers(0, len(WHOLE) - 1))
def test_a_state_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(
        StateRestoreError, match=r"no state of a subtask|the head of the state|is cut off: \d+ bytes are expected"
    ):
        decode_state(WHOLE[:size])


def test_bytes_behind_a_state_are_refused() -> None:
    with pytest.raises(StateRestoreError, match="1 bytes follow the state"):
        decode_state(WHOLE + b"x")


def test_modules_registered_to_go_by_value_need_not_exist_where_the_state_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = module_with_model(monkeypatch)
    cloudpickle.register_pickle_by_value(module)
    try:
        content = encode_state(state_of(module.Model()))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    monkeypatch.delitem(sys.modules, "made_up_module")

    assert type(own_of(content)).__name__ == "Model"


def test_nothing_of_an_operator_is_left_out() -> None:
    """A field that is added to ``OperatorState`` and forgotten here would be lost at a restart without a word."""
    rows = StateRows(("k",), (5,))
    keyed = KeyedStateSnapshot({"n": StateDescription(StateKind.VALUE, "LONG")}, 128, {3: {"n": rows}})
    offsets = OperatorStateSnapshot({"offsets": OperatorStateRows(Redistribution.UNION, "LONG", (1, 2))})
    whole = OperatorState({"sum": 4}, {3: {"timers": [1]}}, 2, keyed, offsets)
    assert all(getattr(whole, each.name) != each.default for each in fields(OperatorState))

    found = decode_state(encode_state(SubtaskState({"a": whole})))

    assert found.operators == {"a": whole}
