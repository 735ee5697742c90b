"""What a run will take on a cluster: time, memory, money, before anyone pays."""
