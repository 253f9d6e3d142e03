"""Why names of PyFlink differ here, for the page "Coming from PyFlink": patterns of names, and what to use instead.

Side:  any.
Rules: the first pattern that matches the whole of ``module.Class.member`` counts; without one, the text of the error is used.
"""

from typing import Final

REASONS: Final[dict[str, str]] = {}
