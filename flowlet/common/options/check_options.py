"""``check_options``: an option that nothing reads, or whose value is wrong, is an error at once.

Side:  pure.
Rules: an option that only makes a job faster in Flink, and is not needed here, gives a warning.  A name that is nearly that of a known
       option is taken for a slip; only then the options of Flink are looked at.
"""

import difflib
import warnings
from typing import Final

from flowlet.common.configuration import Configuration
from flowlet.common.options.flinks_options import EXACT, reason_of_prefix
from flowlet.common.options.known_options import BY_NAME
from flowlet.common.options.tuning_options import IGNORED, IgnoredOptionWarning
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
        if option is None and name in IGNORED:
            warnings.warn(f"option {name!r} has no effect here: {IGNORED[name]}", IgnoredOptionWarning, stacklevel=2)
            continue
        if option is None:
            raise ConfigError(_unknown(name))
        option.checked(name, text)


def _unknown(name: str) -> str:
    if name in EXACT:
        return f"option {name!r} exists in Flink, but not here: {EXACT[name]}; leave it out"
    slip = _nearest(name, _SURE)
    reason = None if slip else reason_of_prefix(name)
    if reason is not None:
        return f"option {name!r} is not read here: {reason}; leave it out"
    near = slip or _nearest(name, _LIKELY)
    return f"option {name!r} is not known" + (f"; did you mean {near!r}?" if near else "; leave it out")


def _nearest(name: str, similarity: float) -> str | None:
    found = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=similarity)
    return found[0] if found else None
