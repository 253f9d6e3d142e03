"""``check_options``: an option that nothing reads, or whose value is wrong, is an error at once.

Side:  pure.
Rules: an option that only makes a job faster in Flink, and is not needed here, gives a warning.  A name that is nearly
       that of a known option is taken for a slip; only then the options of Flink are looked at, by the beginnings of
       their names.
"""

import difflib
from typing import Final

from flowlet.common.configuration import Configuration
from flowlet.common.options.flinks_options import EXACT, reason_of_prefix
from flowlet.common.options.known_options import BY_NAME
from flowlet.common.settings.tuning_options import IGNORED, reason_to_ignore, warn_of_option
from flowlet.errors import ConfigError

# Similarities by difflib; names share long beginnings.  Not measured.
_SURE: Final = 0.9
_LIKELY: Final = 0.6


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
    reason = None if slip else reason_of_prefix(name)
    if reason is not None:
        return f"option {name!r} is not read here: {reason}; leave it out"
    near = slip or _nearest(name, _LIKELY)
    return f"option {name!r} is not known" + (f"; did you mean {near!r}?" if near else "; leave it out")


def _nearest(name: str, similarity: float) -> str | None:
    found = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=similarity)
    return found[0] if found else None
