"""Real machines: a coordinator, its hub, and sites with data of their own; Flower's programs carry the messages."""
