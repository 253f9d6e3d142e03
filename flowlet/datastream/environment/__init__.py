"""Parts of ``StreamExecutionEnvironment`` that are about its options alone."""
