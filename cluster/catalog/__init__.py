"""Catalog of instance types, prices and software versions, as dated data files."""
