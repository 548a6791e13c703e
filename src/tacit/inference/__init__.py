"""A trained model at work: what its file says about it, predictions, samples to label next, exports."""
