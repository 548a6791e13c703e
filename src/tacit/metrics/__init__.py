"""How good predictions are, and how sure that is: from true classes and a model's outputs. Needs no torch."""
