"""Files that a program ships with its job: packed by the client, kept in parts by the JobManager, laid out by TaskManagers."""
