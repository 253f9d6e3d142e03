"""Keys of users' classes, and of every other type: the keys that they are equal to, in every process."""

import copyreg
import enum
import gc
import math
import os
import pickle
import subprocess
import sys
import threading
import types
import weakref
from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.types import Row
from flowlet.errors import KeyTypeError
from flowlet.keys.exact_keys import exact_key, exact_key_hash, exact_keys, key_group, key_hash
from flowlet.keys.key_columns import column_hashes, exact_key_groups
from tests.flowlet.keys_of_every_type import GOLDEN, Access, One, Order, Plain, Shop, Slotted, Struct, Version, money
from tests.waiting import PATIENCE_S

KEYS = [key for key, _ in GOLDEN]
LEAVES = st.one_of(
    st.sampled_from([key for key in KEYS if not isinstance(key, list | Row)]),
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.decimals(),
    st.dates(),
    st.datetimes(timezones=st.none() | st.timezones()),
    st.timedeltas(),
    st.uuids(),
    st.complex_numbers(),
)
NESTED = st.recursive(
    LEAVES,
    lambda keys: st.one_of(
        st.lists(keys, max_size=3).map(tuple),
        st.lists(keys, max_size=3),
        st.lists(keys, max_size=3).map(lambda values: Row(*values)),
        keys.map(One),
    ),
    max_leaves=6,
)


def can_be_an_element(key: Any) -> bool:
    """Return whether the key is hashable: it holds no list, and is no decimal that signals."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _name(value: object) -> str:
    """Return a text that is equal in every process: without addresses, and sets without their order."""
    text = repr(value)
    return type(value).__name__ if " at 0x" in text or "frozenset" in text else text[:60]


@pytest.mark.parametrize(("key", "code"), GOLDEN, ids=_name)
def test_hashes_never_change(key: Any, code: int) -> None:
    assert key_hash(key) == code


@pytest.mark.parametrize("key", KEYS, ids=_name)
def test_a_stand_in_has_the_hash_of_its_key_also_inside_a_tuple(key: Any) -> None:
    for each in (key, (1, key)):
        assert exact_key_hash(exact_key(each)) == key_hash(each)


@given(
    keys=st.lists(st.integers() | st.text() | st.floats() | st.tuples(st.text(), st.booleans())),
    width=st.integers(1, 32768),
)
def test_the_groups_of_many_stand_ins_are_those_of_each_key(keys: list[Any], width: int) -> None:
    found = exact_key_groups([exact_key(key) for key in keys], width)

    assert found.tolist() == [key_group(key, width) for key in keys]
    assert found.dtype == np.int32


def test_all_of_these_keys_are_different() -> None:
    assert len(set(exact_keys(KEYS))) == len(KEYS)


@pytest.mark.parametrize("key", KEYS, ids=_name)
def test_a_key_that_travels_stays_the_same_and_so_does_its_stand_in(key: Any) -> None:
    """Stand-ins are kept in snapshots."""
    exact = exact_key(key)

    for copy in (pickle.loads(pickle.dumps(key)), cloudpickle.loads(cloudpickle.dumps(key))):
        assert exact_key(copy) == exact
        assert hash(exact_key(copy)) == hash(exact)
        assert key_hash(copy) == key_hash(key)
    assert pickle.loads(pickle.dumps(exact)) == exact


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1"])
def test_hashes_are_the_same_in_another_process(seed: str) -> None:
    """Another process has other hashes of str, and with them another order of a frozenset."""
    program = (
        "from flowlet.keys.exact_keys import key_hash; from tests.flowlet.keys_of_every_type import *; "
        "print([key_hash(row[0]) for row in GOLDEN])"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout

    assert printed.strip() == str([code for _, code in GOLDEN])


@given(NESTED)
def test_a_copy_of_any_key_is_the_same_key(key: Any) -> None:
    copy = pickle.loads(pickle.dumps(key))

    assert exact_key(copy) == exact_key(key)
    assert key_hash(copy) == key_hash(key)
    assert -(2**31) <= key_hash(key) < 2**31


@given(st.lists(NESTED, max_size=6))
def test_lists_and_columns_say_the_same_as_single_keys(keys: list[Any]) -> None:
    assert exact_keys(keys) == [exact_key(key) for key in keys]
    assert column_hashes(keys).tolist() == [key_hash(key) for key in keys]


@given(
    st.lists(st.tuples(LEAVES, LEAVES)) | st.lists(st.lists(LEAVES, max_size=2).map(tuple)) | st.lists(LEAVES.map(One))
)
def test_lists_of_one_type_say_the_same_as_single_keys(keys: list[Any]) -> None:
    """Tuples are looked at field by field where all have as many."""
    assert exact_keys(keys) == [exact_key(key) for key in keys]


@given(LEAVES, LEAVES)
def test_keys_are_the_same_inside_others_exactly_if_they_are_alone(first: Any, second: Any) -> None:
    is_same = exact_key(first) == exact_key(second)

    for wrap in (lambda key: (key,), lambda key: [key], Row, One, lambda key: ("a", (key, 1))):
        assert (exact_key(wrap(first)) == exact_key(wrap(second))) == is_same
    assert not is_same or key_hash(first) == key_hash(second)


@given(st.frozensets(LEAVES.filter(can_be_an_element), max_size=5), st.randoms())
def test_the_order_of_a_frozenset_does_not_count(key: frozenset[Any], random: Any) -> None:
    elements = list(key)
    random.shuffle(elements)

    assert exact_key(frozenset(elements)) == exact_key(key)
    assert key_hash(frozenset(elements)) == key_hash(key)


def test_elements_that_are_the_same_key_count_once() -> None:
    nans = frozenset({math.nan, float("nan"), Decimal("NaN")})

    assert len(nans) == 3
    assert exact_key(nans) == exact_key(frozenset({math.nan, Decimal("NaN")}))
    assert key_hash(nans) == key_hash(frozenset({math.nan, Decimal("NaN")}))


# ---------------------------------------------------------------- enums, and subclasses of plain types


def test_a_subclass_that_holds_and_compares_more_is_a_key_of_its_own() -> None:
    assert len({exact_key(key) for key in (5, money(5, "EUR"), money(5, "USD"), money(6, "EUR"))}) == 4
    assert exact_key(money(5, "EUR")) == exact_key(money(5, "EUR"))


def test_a_subclass_with_attributes_that_it_does_not_compare_is_its_plain_value() -> None:
    class Tagged(str):
        tag: str

    key = Tagged("a")
    key.tag = "b"

    assert exact_key(key) == "a"


def test_members_of_enums_go_by_class_and_name() -> None:
    class Renumbered(enum.Enum):
        ONE = "one"

    class Other(enum.Enum):
        ONE = 1

    Renumbered.__module__, Renumbered.__qualname__ = Plain.__module__, Plain.__qualname__

    assert exact_key(Renumbered.ONE) == exact_key(Plain.ONE)
    assert exact_key(Other.ONE) != exact_key(Plain.ONE)
    assert exact_key(Access.READ | Access.WRITE) == exact_key(Access.WRITE | Access.READ)


# ---------------------------------------------------------------- by content


def test_only_the_fields_that_count_for_equality_count() -> None:
    assert exact_key(Order("ann", 1, "now")) == exact_key(Order("ann", 1, "later"))
    assert exact_key(Order("ann", 1)) != exact_key(("ann", 1))


def test_fields_of_other_types_are_other_keys() -> None:
    """Python calls these equal."""
    assert One(1) == One(True) == One(1.0)
    assert len({exact_key(One(value)) for value in (1, True, 1.0, Decimal(1), None, (1,), [1])}) == 7
    assert exact_key(Struct(user="ann", number=1)) != exact_key(Struct(user="ann", number=True))


def test_dataclasses_of_one_form_are_different() -> None:
    first, second = (make_dataclass(name, ["user"], frozen=True) for name in ("First", "Second"))

    assert exact_key(first("a")) != exact_key(second("a"))


def test_the_same_class_made_twice_gives_the_same_keys() -> None:
    """A class of a user's program is another object in every process, and may be one in one process, too."""

    def made() -> Any:
        @dataclass(frozen=True)
        class Local:
            value: int

        return Local

    first, second = made(), made()

    assert first(1) != second(1)
    assert exact_key(first(1)) == exact_key(second(1))


def test_frozen_classes_of_attrs_go_by_the_fields_that_they_compare() -> None:
    attrs = pytest.importorskip("attrs")
    made = attrs.make_class("Made", {"user": attrs.field(), "note": attrs.field(eq=False)}, frozen=True)

    assert exact_key(made("ann", "now")) == exact_key(made("ann", "later"))
    assert exact_key(made("ann", "now")) != exact_key(made("bob", "now"))


def test_what_is_computed_once_does_not_count() -> None:
    asked = Version(1, 2)
    assert asked.text == "1.2"

    assert exact_key(asked) == exact_key(Version(1, 2))
    assert key_hash(asked) == key_hash(Version(1, 2))


def test_the_order_of_attributes_does_not_count() -> None:
    first, second = Version(1, 2), Version(1, 2)
    second.__dict__ = dict(reversed(list(second.__dict__.items())))

    assert exact_key(first) == exact_key(second)
    assert key_hash(first) == key_hash(second)


def test_slots_and_attributes_count() -> None:
    class Both(Slotted):
        pass

    first, second = Both("a"), Both("a")
    second.more = 1  # type: ignore[attr-defined]  # it has attributes besides its slots

    assert exact_key(first) != exact_key(second)


def test_pickles_of_other_modules_are_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key class that another module has registered with ``copyreg`` is pickled by its function, as pickle does it."""

    class Foreign(Version):
        pass

    monkeypatch.setitem(copyreg.dispatch_table, Foreign, lambda key: (Foreign, (key.major,)))

    assert exact_key(Foreign(1, 2)) == exact_key(Foreign(1, 3))


def test_a_class_goes_when_nobody_needs_it_any_more() -> None:
    """A TaskManager runs one job after the other."""
    made = make_dataclass("Made", ["value"], frozen=True)
    exact_key(made(1))
    reference = weakref.ref(made)
    del made
    gc.collect()

    assert reference() is None


# ---------------------------------------------------------------- what is refused


class NoEquality:
    pass


class OnlyHash:
    def __hash__(self) -> int:
        return 1


class OnlyEquality:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnlyEquality)


@dataclass
class Thawed:
    value: int


@dataclass(frozen=True, eq=False)
class ByIdentity:
    value: int


class ThawedStruct(msgspec.Struct):
    value: int


class Frozen(dict[str, int]):
    def __hash__(self) -> int:  # type: ignore[override]  # which a dict has not
        return 1


class KeepsItsHash(Slotted):
    def __hash__(self) -> int:
        self.kept = hash(self.name)
        return self.kept


class HoldsALock(Slotted):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lock = threading.Lock()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return HoldsALock, (self.lock,)


class CannotBePickled(Slotted):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ValueError("stays here")


class CannotBeHashed(Slotted):
    def __hash__(self) -> int:
        raise ZeroDivisionError("no hash")


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)

NESTED_DEEPLY: Any = ()
for _ in range(5_000):
    NESTED_DEEPLY = (NESTED_DEEPLY,)

REFUSED: list[tuple[Any, str, str, str]] = [
    ({"a": 1}, "dict", "it has no hash, since it may change", "tuple(sorted(key.items()))"),
    ({1}, "set", "it has no hash", "frozenset(key)"),
    (bytearray(b"a"), "bytearray", "it has no hash", "bytes(key)"),
    (memoryview(b"a"), "memoryview", "cannot be taken apart", "bytes(key)"),
    (np.zeros(2), "ndarray", "it has no hash", "key.tobytes()"),
    (np.longdouble(1), "longdouble", "depends on the machine", "float(key)"),
    (np.clongdouble(1), "clongdouble", "depends on the machine", "complex(key)"),
    (NoEquality(), "NoEquality", "without an __eq__ of its own", "a frozen dataclass"),
    (object(), "object", "without an __eq__ of its own", "a frozen dataclass"),
    (OnlyHash(), "OnlyHash", "without an __eq__ of its own", "a frozen dataclass"),
    (OnlyEquality(), "OnlyEquality", "it has no hash", "a frozen dataclass"),
    (Thawed(1), "Thawed", "it has no hash", "a frozen dataclass"),
    (ByIdentity(1), "ByIdentity", "without an __eq__ of its own", "a frozen dataclass"),
    (ThawedStruct(1), "ThawedStruct", "make it frozen=True", "a frozen dataclass"),
    (Frozen(a=1), "dict", "in no fixed order", "tuple(sorted(key.items()))"),
    (str, "type", "without an __eq__ of its own", "key.__qualname__"),
    (NoEquality, "type", "without an __eq__ of its own", "key.__qualname__"),
    (lambda: 1, "function", "without an __eq__ of its own", "key.__qualname__"),
    (types.SimpleNamespace(a=1), "SimpleNamespace", "it has no hash", "a frozen dataclass"),
    (KeepsItsHash("a"), "KeepsItsHash", "it keeps its hash", "a frozen dataclass"),
    (HoldsALock("a"), "lock", "without an __eq__ of its own", "a frozen dataclass"),
    (
        CannotBePickled("a"),
        "CannotBePickled",
        "it cannot be taken apart (ValueError: stays here)",
        "a frozen dataclass",
    ),
    (CannotBeHashed("a"), "CannotBeHashed", "its hash fails (ZeroDivisionError: no hash)", "a frozen dataclass"),
    (One({"a": 1}), "One", "because of a part of it", "tuple(sorted(key.items()))"),
    (One({"a": 1}), "dict", "it has no hash", "tuple(sorted(key.items()))"),
    (("a", {1}), "set", "it has no hash", "frozenset(key)"),
    ([{1}], "set", "it has no hash", "frozenset(key)"),
    (Row(a={1}), "set", "it has no hash", "frozenset(key)"),
    (HOLDS_ITSELF, "list", "nested too deeply, or holds itself", ""),
    (NESTED_DEEPLY, "tuple", "nested too deeply, or holds itself", ""),
]


@pytest.mark.parametrize(
    ("key", "kind", "reason", "instead"), REFUSED, ids=[f"{row[1]}-{row[2][:20]}" for row in REFUSED]
)
def test_a_key_that_may_be_another_one_elsewhere_is_refused_with_advice(
    key: Any, kind: str, reason: str, instead: str
) -> None:
    """The message names the type, the reason and an alternative; hash, group and stand-in refuse alike, also the second
    time.
    """
    for function in (
        key_hash,
        exact_key,
        lambda key: key_group(key, 128),
        lambda key: exact_keys(["a", key]),
        lambda key: exact_keys([key]),
    ):
        for _ in range(2):
            with pytest.raises(KeyTypeError) as caught:
                function(key)

            assert f"value of type {kind} cannot be a key" in str(caught.value)
            assert reason in str(caught.value)
            assert instead in str(caught.value)


def test_a_class_that_one_thread_refuses_is_not_accepted_by_another_one() -> None:
    """The second thread looks at the key after the first one has changed it, and is ready last."""
    both_have_looked, first_is_ready = threading.Event(), threading.Event()

    class KeepsItsHashSlowly:
        def __init__(self) -> None:
            self.name = "a"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, KeepsItsHashSlowly)

        def __hash__(self) -> int:
            if hasattr(self, "kept"):  # the second thread is past its first look
                both_have_looked.set()
                assert first_is_ready.wait(PATIENCE_S)
            self.kept = hash(self.name)
            if threading.current_thread() is threading.main_thread():
                second.start()
                assert both_have_looked.wait(PATIENCE_S)
            return self.kept

    def refused() -> bool:
        try:
            exact_key(key)
        except KeyTypeError:
            return True
        return False

    key, seen = KeepsItsHashSlowly(), list[bool]()
    second = threading.Thread(target=lambda: seen.append(refused()))

    seen.append(refused())
    first_is_ready.set()
    second.join(PATIENCE_S)

    assert seen == [True, True]
    assert refused()


def test_an_instance_without_one_of_its_fields_is_refused() -> None:
    key = object.__new__(Shop)

    with pytest.raises(KeyTypeError, match=r"cannot be taken apart \(AttributeError"):
        exact_key(key)
