"""The parts of a source, and who hands them out: what JobManager and tasks both know."""
