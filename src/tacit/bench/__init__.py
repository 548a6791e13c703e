"""Benchmarks: the tables of papers as files, played cell by cell, with our numbers beside the published ones."""
