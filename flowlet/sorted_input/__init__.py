"""Keyed inputs of BATCH mode: sorted by key in bounded memory, then handed over one key after the other."""
