"""Slurm's commands: the only package that contains squeue, sinfo, scontrol, sacct and sacctmgr.

Functions here build command lines and parse output. Callers run them, because the same command may run locally,
over SSH or through a cloud's remote execution. The code imports only the standard library and runs on Python 3.9:
the health checks run it with the node's own Python.
"""
