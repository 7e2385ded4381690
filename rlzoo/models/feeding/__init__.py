"""Feeding a decoder: padded rows, or each prompt once and no padding."""
