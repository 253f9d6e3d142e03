"""``NamespacedKey``: a key of the stream together with a namespace, such as a window, under which state is kept.

Side:       pure.
Invariants: its key group is that of the key alone, so that it moves with the key.  Its exact key (``exact_keys``)
            equals another one's exactly if both keys and both namespaces do.
Source:     Flink ``InternalKvState.setCurrentNamespace``: there the namespace is a part of every access of a state.
"""

from typing import Any

__all__ = ["NamespacedKey"]


class NamespacedKey:
    """A key and a namespace; nobody changes it.

    Args:
        key: as the user knows it.
        namespace: something that can be a key, too.
    """

    __slots__ = ("exact", "key", "namespace")

    def __init__(self, key: Any, namespace: Any) -> None:
        self.key = key
        self.namespace = namespace
        self.exact: Any = None  # Set at the first use, by ``exact_key``.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamespacedKey) and self.key == other.key and self.namespace == other.namespace

    def __hash__(self) -> int:
        return hash((self.key, self.namespace))

    def __reduce__(self) -> Any:
        return NamespacedKey, (self.key, self.namespace)

    def __repr__(self) -> str:
        return f"NamespacedKey({self.key!r}, {self.namespace!r})"
