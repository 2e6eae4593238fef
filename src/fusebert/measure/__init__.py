"""Measures models of any kind, each run by its own framework: do they answer alike, how well, how fast, how far."""
