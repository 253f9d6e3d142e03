"""Parts of ``StreamExecutionEnvironment`` that are about its options alone.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
