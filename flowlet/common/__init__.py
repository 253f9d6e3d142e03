"""The parts that every program uses: types, configuration, the client of a job."""

from flowlet.common.not_yet import missing_names
from netstack.late import late_names

__getattr__, __dir__, __all__ = late_names(__name__, missing_names(__name__))
