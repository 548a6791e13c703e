"""What a network sees of a sample: normalised, weakly or strongly augmented."""
