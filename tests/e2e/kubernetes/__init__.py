"""A real Kubernetes cluster on this machine: real kubelets, containerd and runc, no virtual machine, no registry.

Control plane and nodes are processes in a network namespace of their own, where every node has the same address and a
port of its own. `python3 -m setup kubernetes` builds the programs. Run with cgroup v1 only; v2 is untested.
"""
