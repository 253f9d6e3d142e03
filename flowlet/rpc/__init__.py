"""Control messages between client, JobManager and TaskManagers."""
