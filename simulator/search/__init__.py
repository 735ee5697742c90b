"""The planner: layouts, node counts and machines for a model, as a front of time against cost."""
