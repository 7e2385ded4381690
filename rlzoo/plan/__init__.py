"""The plan of a run: parameters, bytes per process, bounds on its speed."""
