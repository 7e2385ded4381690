"""rlzoo: a zoo of policy-gradient objectives for language models, on PyTorch Lightning."""

__version__ = "0.1.0"
