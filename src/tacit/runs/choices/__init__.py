"""Decisions by the data at hand, each with its reason: which views keep the label, whether to start pretrained."""
