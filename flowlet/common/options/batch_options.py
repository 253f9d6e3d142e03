"""The options of BATCH mode.

Side:   pure.
Units:  sizes in bytes.
Source: Flink ``ExecutionOptions``, ``MemorySize``.
"""

import re
from typing import Any, Final

from flowlet.common.configuration import Configuration
from flowlet.common.options.option import Option, boolean, choice
from flowlet.common.settings.batch_settings import DEFAULT_SORT_MEMORY_BYTES, BatchSettings
from flowlet.errors import ConfigError

_BATCH: Final = "batch_settings"
_SIZE: Final = re.compile(r"(\d+)\s*([a-z]*)", re.ASCII)
_FACTORS: Final = {
    label: 1 << (10 * power)
    for power, labels in enumerate(("b bytes", "k kb kibibytes", "m mb mebibytes", "g gb gibibytes", "t tb tebibytes"))
    for label in labels.split()
} | {"": 1}
_LEAST_SORT_MEMORY_BYTES: Final = 64 * 1024


def _sort_memory_bytes(found: str) -> int:
    match = _SIZE.fullmatch(found.lower())
    if match is None or match[2] not in _FACTORS:
        raise ValueError(found)
    size = int(match[1]) * _FACTORS[match[2]]
    if size < _LEAST_SORT_MEMORY_BYTES:
        raise ValueError(found)
    return size


SHUFFLE_MODE: Final = choice(
    "execution.batch-shuffle-mode",
    _BATCH,
    {"all_exchanges_blocking": "ALL_EXCHANGES_BLOCKING", "all_exchanges_pipelined": "ALL_EXCHANGES_PIPELINED"},
    default="ALL_EXCHANGES_BLOCKING",
)
SORTS_INPUTS: Final = boolean("execution.sorted-inputs.enabled", _BATCH, default=True)
SORT_MEMORY: Final = Option(
    "execution.sorted-inputs.memory",
    _sort_memory_bytes,
    "a size such as '128 mb', of 64 kb or more",
    DEFAULT_SORT_MEMORY_BYTES,
    _BATCH,
)
ENDS_KEYS: Final = boolean("execution.batch-state-backend.enabled", _BATCH, default=True)

FOR_BATCH: Final[tuple[Option[Any], ...]] = (SHUFFLE_MODE, SORTS_INPUTS, SORT_MEMORY, ENDS_KEYS)


def batch_settings(options: Configuration, runtime_mode: str) -> BatchSettings | None:
    """How a job runs that turns out to be a BATCH job; None: it cannot.

    Raises:
        ConfigError: an option is not of its type, or has no effect.
    """
    if runtime_mode == "STREAMING":
        _refuse(options, FOR_BATCH, "the job runs in STREAMING mode")
        return None
    sorts_inputs, ends_keys = SORTS_INPUTS.get(options), ENDS_KEYS.find(options)
    if not sorts_inputs:
        _refuse(options, (SORT_MEMORY,), f"{SORTS_INPUTS.name!r} is false")
        if ends_keys:
            raise ConfigError(
                f"option {ENDS_KEYS.name!r} is true, which needs inputs that are sorted by key: {SORTS_INPUTS.name!r} "
                "is false"
            )
    return BatchSettings(
        is_blocking=SHUFFLE_MODE.get(options) == "ALL_EXCHANGES_BLOCKING",
        sorts_inputs=sorts_inputs,
        ends_keys=sorts_inputs and ends_keys is not False,
        sort_memory_bytes=SORT_MEMORY.get(options),
    )


def _refuse(options: Configuration, without_effect: tuple[Option[Any], ...], why: str) -> None:
    for option in without_effect:
        name = option.is_set(options)
        if name is not None:
            raise ConfigError(f"option {name!r} is set and has no effect, because {why}: leave it out")
