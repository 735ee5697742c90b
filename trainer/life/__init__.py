"""What keeps a run alive on a cluster, and how it ends when it has to."""
