"""Real machines: a hub that coordinates and sites with their own data; Flower carries the messages."""
