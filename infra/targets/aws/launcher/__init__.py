"""Launch, list and terminate EC2 instances for Slurm's power saving; runs on the controller and in the engine."""
