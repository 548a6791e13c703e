"""The network of a run: its section of the config, the options of its factory, what its frozen layers compute once."""
