"""The creation of a cluster's machines from its typed description, and their removal."""
