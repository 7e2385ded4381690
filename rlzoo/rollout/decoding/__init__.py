"""How the native sampler makes tokens: decoders, their caches, the draw."""
