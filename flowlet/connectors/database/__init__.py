"""The database sink: sessions, statements, rows, and a driver for each database."""
