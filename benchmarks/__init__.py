"""What is measured, each figure beside its reference in the same run."""
