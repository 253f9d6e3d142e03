"""``ExecutionSwitches``: the on and off of ``ExecutionConfig``.

Side:   pure.
Rules:  what concerns the speed of Java alone has no effect: it is remembered, and a warning says so.
Source: PyFlink ``pyflink.common.execution_config``.
"""

from collections.abc import Mapping
from typing import Final, Self

from flowlet.common.settings.tuning_options import (
    CLEANER,
    COMPRESSION,
    OBJECT_REUSE,
    SERIALIZERS,
    SHARED,
    SNAPSHOT_COMPRESSION,
    warn_of_setter,
)
from flowlet.errors import ConfigError

# The switches without an effect, by the method that turns them, and the options that say the same: name, and the value
# that turns.
_OPTIONS: Final = {
    "enable_object_reuse": (OBJECT_REUSE, "true"),
    "set_use_snapshot_compression": (SNAPSHOT_COMPRESSION, "true"),
    "disable_closure_cleaner": ("pipeline.closure-cleaner-level", "none"),
    "enable_force_kryo": ("pipeline.force-kryo", "true"),
    "enable_force_avro": ("pipeline.force-avro", "true"),
    "disable_generic_types": ("pipeline.generic-types", "false"),
}


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

    def enable_object_reuse(self) -> Self:
        """Without an effect, which a warning says: chained operators always pass on the record object itself, as
        PyFlink's do.
        """
        self._turn("enable_object_reuse")
        warn_of_setter("enable_object_reuse()", SHARED)
        return self

    def disable_object_reuse(self) -> Self:
        """The default; without an effect."""
        return self._turn("enable_object_reuse", is_turned=False)

    def is_object_reuse_enabled(self) -> bool:
        """False, unless ``enable_object_reuse`` was called last; without an effect."""
        return "enable_object_reuse" in self._turned

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
        """Without an effect, which a warning says: snapshots are not compressed.  Raises ConfigError: it is no bool."""
        if not isinstance(use_snapshot_compression, bool):
            raise ConfigError(f"set_use_snapshot_compression() needs True or False, got {use_snapshot_compression!r}")
        self._turn("set_use_snapshot_compression", is_turned=use_snapshot_compression)
        if use_snapshot_compression:
            warn_of_setter("set_use_snapshot_compression()", COMPRESSION)
        return self

    def is_use_snapshot_compression(self) -> bool:
        """Whether it was asked for; snapshots are not compressed."""
        return "set_use_snapshot_compression" in self._turned

    def enable_closure_cleaner(self) -> Self:
        """The default; without an effect."""
        return self._turn("disable_closure_cleaner", is_turned=False)

    def disable_closure_cleaner(self) -> Self:
        """Without an effect, which a warning says."""
        self._turn("disable_closure_cleaner")
        warn_of_setter("disable_closure_cleaner()", CLEANER)
        return self

    def is_closure_cleaner_enabled(self) -> bool:
        """True, unless ``disable_closure_cleaner`` was called last."""
        return "disable_closure_cleaner" not in self._turned

    def enable_force_kryo(self) -> Self:
        """Without an effect, which a warning says."""
        self._turn("enable_force_kryo")
        warn_of_setter("enable_force_kryo()", SERIALIZERS)
        return self

    def disable_force_kryo(self) -> Self:
        """The default; without an effect."""
        return self._turn("enable_force_kryo", is_turned=False)

    def is_force_kryo_enabled(self) -> bool:
        """False, unless ``enable_force_kryo`` was called last."""
        return "enable_force_kryo" in self._turned

    def enable_force_avro(self) -> Self:
        """Without an effect, which a warning says."""
        self._turn("enable_force_avro")
        warn_of_setter("enable_force_avro()", SERIALIZERS)
        return self

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
        self._turn("disable_generic_types")
        warn_of_setter("disable_generic_types()", SERIALIZERS)
        return self

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

    def take_options(self, texts: Mapping[str, str]) -> None:
        """Remember the switches without an effect that are set as options, of which a warning was given; not in
        PyFlink.
        """
        for switch, (name, turns) in _OPTIONS.items():
            if name in texts:
                self._turn(switch, is_turned=texts[name].strip().lower() == turns)

    def _turn(self, switch: str, *, is_turned: bool = True) -> Self:
        self._turned = self._turned | {switch} if is_turned else self._turned - {switch}
        return self
