"""Data: where samples come from (sources), who holds them (split), and what a network sees of them (views)."""
