"""One file per paper; each file reads like its pseudo-code and ends with the names it offers."""
