"""``ExecutionSwitches``: the on and off of ``ExecutionConfig``.

Side:   pure.
Rules:  what concerns serializers and cleaners of Java has no effect: it is remembered, and whoever turns it is told so.
Source: PyFlink ``pyflink.common.execution_config``.
"""

import warnings
from typing import Final, Self

from flowlet.errors import ConfigError

_CLEANER: Final = "functions are pickled as they are, with what they refer to"
_SERIALIZERS: Final = "records are serialized by their declared types, or pickled"


class ExecutionSwitches:
    """A base class of ``ExecutionConfig`` alone."""

    __slots__ = ("_has_auto_generated_uids", "_turned")

    def __init__(self) -> None:
        self._has_auto_generated_uids = True
        self._turned: frozenset[str] = frozenset()  # the switches without an effect that are not as they were made

    def enable_auto_generated_uids(self) -> Self:
        """Let operators without a uid have one that follows from their place in the program; the default."""
        self._has_auto_generated_uids = True
        return self

    def disable_auto_generated_uids(self) -> Self:
        """Refuse a job with an operator that has no uid."""
        self._has_auto_generated_uids = False
        return self

    def has_auto_generated_uids_enabled(self) -> bool:
        """Whether operators need no uid."""
        return self._has_auto_generated_uids

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
        """Accept False.  Raises ConfigError: snapshots are not compressed."""
        if use_snapshot_compression is not False:
            raise ConfigError("snapshots are not compressed: leave out set_use_snapshot_compression()")
        return self

    def is_use_snapshot_compression(self) -> bool:
        """False: snapshots are not compressed."""
        return False

    def enable_closure_cleaner(self) -> Self:
        """The default; without an effect."""
        return self._turn("disable_closure_cleaner", is_turned=False)

    def disable_closure_cleaner(self) -> Self:
        """Without an effect, which a warning says."""
        return self._turn("disable_closure_cleaner", _CLEANER)

    def is_closure_cleaner_enabled(self) -> bool:
        """True, unless ``disable_closure_cleaner`` was called last."""
        return "disable_closure_cleaner" not in self._turned

    def enable_force_kryo(self) -> Self:
        """Without an effect, which a warning says."""
        return self._turn("enable_force_kryo", _SERIALIZERS)

    def disable_force_kryo(self) -> Self:
        """The default; without an effect."""
        return self._turn("enable_force_kryo", is_turned=False)

    def is_force_kryo_enabled(self) -> bool:
        """False, unless ``enable_force_kryo`` was called last."""
        return "enable_force_kryo" in self._turned

    def enable_force_avro(self) -> Self:
        """Without an effect, which a warning says."""
        return self._turn("enable_force_avro", _SERIALIZERS)

    def disable_force_avro(self) -> Self:
        """The default; without an effect."""
        return self._turn("enable_force_avro", is_turned=False)

    def is_force_avro_enabled(self) -> bool:
        """False, unless ``enable_force_avro`` was called last."""
        return "enable_force_avro" in self._turned

    def enable_generic_types(self) -> Self:
        """The default; without an effect."""
        return self._turn("disable_generic_types", is_turned=False)

    def disable_generic_types(self) -> Self:
        """Without an effect, which a warning says."""
        return self._turn("disable_generic_types", _SERIALIZERS)

    def has_generic_types_disabled(self) -> bool:
        """False, unless ``disable_generic_types`` was called last."""
        return "disable_generic_types" in self._turned

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """None: there are no serializers of Java."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """None: there are no serializers of Java."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """None: there are no serializers of Java."""
        return []

    def _turn(self, name: str, reason: str = "", *, is_turned: bool = True) -> Self:
        self._turned = self._turned | {name} if is_turned else self._turned - {name}
        if is_turned:
            warnings.warn(f"{name}() has no effect: {reason}; leave it out", stacklevel=3)
        return self
