"""What AWS sells, as dated data: instance types, network cards, prices. Imports nothing of ours."""
