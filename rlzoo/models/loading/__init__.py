"""Where weights, configs and tokenizers come from."""
