"""Everything that a cluster can leave on AWS, by service: how it is found, what it costs, how it is removed."""
