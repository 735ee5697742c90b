"""Azure: virtual machines of a scale set on an InfiniBand fabric, which then are set up over SSH."""
