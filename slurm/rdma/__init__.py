"""RDMA devices of a node: what sysfs says about them, and which of their ports jobs use."""
