"""Which methods of compression leave a residual on each rank. Imports no torch."""

METHODS_WITH_RESIDUAL = ("topk", "randomk", "powersgd")
"""Methods that add what a rank has not sent to its next gradient."""
