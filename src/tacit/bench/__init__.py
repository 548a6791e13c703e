"""Benchmarks: tables of papers as files, run cell by cell and compared with the published numbers."""
