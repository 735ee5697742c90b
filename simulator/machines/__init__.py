"""From a stack, an instance type or a profile to machines and the rates to predict with."""
