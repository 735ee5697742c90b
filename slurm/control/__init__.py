"""Slurm's commands: the only package that spells squeue, sinfo, scontrol, sacct and sacctmgr.

Functions here build command lines and parse answers; callers bring the runner, because the same command runs locally,
over SSH or through a cloud's remote execution. Only the standard library is imported, and the code keeps to Python 3.9:
the health checks run it with the node's own Python.
"""
