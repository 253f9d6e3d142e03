"""A key with a namespace moves with the key, and is equal only to keys in its own namespace."""

import pickle

import pytest

from flowlet.datastream.window import CountWindow, GlobalWindow, TimeWindow
from flowlet.keys.exact_keys import NamespacedKey, exact_key, key_bytes, key_group, key_hash


@pytest.mark.parametrize("key", ["a", 7, None, 1.5, ("a", True)])
def test_the_key_group_is_that_of_the_key(key: object) -> None:
    named = NamespacedKey(key, TimeWindow(0, 10))

    assert key_hash(named) == key_hash(key)
    assert key_group(named, 128) == key_group(key, 128)


def test_keys_and_namespaces_are_told_apart_by_their_types_too() -> None:
    keys = [1, 1.0, True]
    namespaces = [TimeWindow(0, 10), TimeWindow(0, 11), CountWindow(0), GlobalWindow.get(), None]

    exact = [exact_key(NamespacedKey(key, namespace)) for key in keys for namespace in namespaces]

    assert len(set(exact)) == len(exact)
    assert len({key_bytes(each) for each in exact}) == len(exact)
    assert not set(exact) & set(map(exact_key, keys))


def test_it_is_the_same_key_after_pickling() -> None:
    named = NamespacedKey(("a", 1), TimeWindow(0, 10))

    copy = pickle.loads(pickle.dumps(named))

    assert copy == named
    assert exact_key(copy) == exact_key(named)
    assert repr(copy) == "NamespacedKey(('a', 1), TimeWindow(start=0, end=10))"
