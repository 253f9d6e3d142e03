"""What ``flowlet run`` and the user tell a program in environment variables.

Side:  pure.
Rules: options of the program override these.
"""

import json
from collections.abc import Mapping
from typing import Final

from flowlet.common.configuration import Configuration
from flowlet.common.job_client import ProgressMode
from flowlet.errors import ConfigError

OPTIONS_VARIABLE: Final = "FLOWLET_RUN_OPTIONS"  # a JSON object of texts
PROGRESS_VARIABLE: Final = "FLOWLET_PROGRESS"  # auto, on or off
DETACHED_VARIABLE: Final = "FLOWLET_RUN_DETACHED"  # "1": execute() does not wait for the end of the job


def run_options(variables: Mapping[str, str]) -> Configuration | None:
    """The options of the command line; None: there are none.

    Raises ConfigError: the variable was not set by ``flowlet run``.
    """
    text = variables.get(OPTIONS_VARIABLE, "")
    if not text:
        return None
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict) or not all(isinstance(each, str) for each in options.values()):
        raise ConfigError(f"environment variable {OPTIONS_VARIABLE} is no JSON object of texts; flowlet run sets it")
    return Configuration.from_dict(options)


def is_detached(variables: Mapping[str, str]) -> bool:
    """Whether ``execute()`` returns when the job is submitted."""
    return variables.get(DETACHED_VARIABLE, "") == "1"


def progress_mode(variables: Mapping[str, str]) -> ProgressMode:
    """What the user wants.  Raises ConfigError: the variable has an unknown value."""
    wish = variables.get(PROGRESS_VARIABLE, "").strip().lower() or "auto"
    try:
        return ProgressMode(wish)
    except ValueError:
        raise ConfigError(
            f"environment variable {PROGRESS_VARIABLE} is {wish!r}; set it to 'auto', 'on' or 'off', or unset it"
        ) from None
