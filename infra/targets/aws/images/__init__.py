"""Images baked for a cluster's nodes: which there are, the machine that builds one, and records of what is in it."""
