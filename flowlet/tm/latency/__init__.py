"""Makes records of a TaskManager fast: core, thread priorities, switch interval."""
