"""Records as a struct of arrays: columns, the tables of dictionary codes, and the shapes of records.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""

from netstack.late import late_names

__getattr__, __dir__, __all__ = late_names(__name__)
