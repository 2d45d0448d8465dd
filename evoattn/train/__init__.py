"""Training on alignments and structures."""
