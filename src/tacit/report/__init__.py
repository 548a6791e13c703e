"""What a run directory tells people: tables, curves and a page; nothing of the training is imported here."""
