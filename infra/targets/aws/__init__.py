"""The AWS target: nodes are EC2 instances in private subnets."""
