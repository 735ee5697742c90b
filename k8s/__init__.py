"""The trainer on a Kubernetes cluster that exists: manifests of a training job, and kubectl."""
