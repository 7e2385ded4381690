"""What the GSPO paper claims, tried at our scale: runs, figures, pictures and one page."""
