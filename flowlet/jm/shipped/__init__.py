"""The files that jobs ship: kept by the JobManager in parts, which it does not look into."""
