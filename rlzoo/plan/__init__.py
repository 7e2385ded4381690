"""What a run needs before it is started: parameters, bytes per process, bounds on its speed."""
