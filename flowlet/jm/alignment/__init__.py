"""How far the sources of an alignment group may be ahead of each other."""
