"""The matrix of runs, and the processes that make them."""
