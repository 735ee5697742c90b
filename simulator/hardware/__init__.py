"""What GPUs and networks can do: data sheets, measured curves, and the constants fitted to published runs."""
