"""Time and memory of one training step, alone and beside TRL."""
