"""What is done to updates: robust rules, clipping, noise and masks, and the account of what was revealed."""
