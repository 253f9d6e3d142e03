"""Options by name: those that flowlet knows, those that only Flink knows, and what they say about a job."""
