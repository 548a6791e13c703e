"""Data: where samples come from, who holds them, which of them show a label, and how they are augmented."""
