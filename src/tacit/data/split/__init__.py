"""Who holds which sample, and which samples show their label."""
