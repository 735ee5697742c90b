"""The steps of bootstrap. `registry.py` lists them in order; `cloud/` has those of machines that set themselves up."""
