"""From a ClusterSpec to the exact list of what has to exist; pure."""
