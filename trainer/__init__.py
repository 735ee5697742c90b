"""What runs on the nodes; imports nothing of ours."""
