"""What targets share that rent machines from a cloud and then set them up over SSH, like hosts."""
