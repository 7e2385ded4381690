"""How sequences are fed to a decoder: padded, or each prompt once and no padding."""
