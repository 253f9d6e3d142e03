"""Every option that something reads, in one table, and the check of all options that a program, a file or a command
sets.

Side:   pure.
Rules:  an option is added as a row, and nowhere else: a field of the settings class that it belongs to, or a constant
        of ``client_options``.  What it decides stands in the first sentence of its entry in the docstring of the class,
        or of the docstring of the constant: ``python -m tests.options_page --write`` puts it into ``docs/options.md``.
        An option that nothing reads, or whose value is wrong, is an error at once.  A name that is nearly that of a
        known option is taken for a slip; only then the options of Flink are looked at, by the beginnings of their
        names.
"""

import difflib
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from flowlet.common.configuration import Configuration
from flowlet.common.execution_config import EnvironmentSettings
from flowlet.common.flinks_options import EXACT, IGNORED, PREFIXES, reason_of_prefix, reason_to_ignore, warn_of_option
from flowlet.common.job_settings import (
    FAILURE_RATE_DELAY,
    BatchSettings,
    CheckpointSettings,
    GateSettings,
    JobSettings,
    RestartSettings,
    StateSettings,
)
from flowlet.common.option import Option, fixed, rows_by_field
from flowlet.common.options import client_options
from flowlet.common.options.python_options import DependencySettings
from flowlet.errors import ConfigError

_STORAGE: Final = fixed(
    "execution.checkpointing.storage",
    "filesystem",
    "state.checkpoint-storage",
    missing="checkpoints are files in the directory 'execution.checkpointing.dir'",
)
"""Checkpoints are files."""
_CLAIM_MODE: Final = fixed(
    "execution.state-recovery.claim-mode",
    "NO_CLAIM",
    "execution.savepoint-restore-mode",
    missing="a job never changes the checkpoint that it starts from",
)
"""A job never changes the checkpoint that it starts from."""
SETTINGS: Final = (
    EnvironmentSettings,
    BatchSettings,
    JobSettings,
    client_options.ClientRetry,
    CheckpointSettings,
    GateSettings,
    RestartSettings,
    StateSettings,
    DependencySettings,
)
_ROWS: Final[tuple[Option[Any], ...]] = (
    *(row for settings in SETTINGS for row in rows_by_field(settings).values()),
    FAILURE_RATE_DELAY,
    *(each for each in vars(client_options).values() if isinstance(each, Option)),
    _STORAGE,
    _CLAIM_MODE,
)
# A second field of the same option is no second option.
KNOWN: Final = tuple({row.name: row for row in reversed(_ROWS)}.values())[::-1]
BY_NAME: Final = {name: row for row in KNOWN for name in row.names}

# Similarities by difflib; names share long beginnings.  Not measured.
_SURE: Final = 0.9
_LIKELY: Final = 0.6


def replace_options(options: Configuration, former: Iterable[str], texts: Mapping[str, str]) -> None:
    """Unset the options of the former names, and set others, each in place of its older names; nothing is checked."""
    older = (BY_NAME[name].other_names for name in texts if name in BY_NAME)
    for name in (*former, *chain.from_iterable(older)):
        options.remove_config(name)
    for name, text in texts.items():
        options.set_string(name, text)


def check_options(options: Configuration) -> None:
    """Check names and values of all options.

    Raises:
        ConfigError: one is not known, exists in Flink but not here, or its value is not of its type; in one line.
    """
    for name, text in options.to_dict().items():
        option = BY_NAME.get(name)
        if option is not None:
            option.checked(name, text)
            continue
        slip = None if name in IGNORED or name in EXACT else _nearest(name, _SURE)
        reason = None if slip else reason_to_ignore(name)
        if reason is None:
            raise ConfigError(_unknown(name, slip))
        warn_of_option(name, reason)


def _unknown(name: str, slip: str | None) -> str:
    if name in EXACT:
        return f"option {name!r} exists in Flink, but not here: {EXACT[name]}; leave it out"
    reason = None if slip else reason_of_prefix(name, PREFIXES)
    if reason is not None:
        return f"option {name!r} is not read here: {reason}; leave it out"
    near = slip or _nearest(name, _LIKELY)
    return f"option {name!r} is not known" + (f"; did you mean {near!r}?" if near else "; leave it out")


def _nearest(name: str, similarity: float) -> str | None:
    found = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=similarity)
    return found[0] if found else None
