"""Reports on run directories: tables, curves and HTML pages. Nothing from training is imported here."""
