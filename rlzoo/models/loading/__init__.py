"""Loading: weights, configs and tokenizers, and where they come from."""
