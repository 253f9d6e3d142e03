"""The mailbox of a task, the loop that runs its mails, and the measurement of its time.

Internal: not a public API, and may change with any version; programs import flowlet.common and flowlet.datastream.
"""
