"""Programs that the cases measure: sources, sinks and the streams between them."""
