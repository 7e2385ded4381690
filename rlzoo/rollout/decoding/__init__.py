"""The parts of the native sampler: decoders, their caches, the choice of tokens."""
