"""Code that runs on AWS machines: they download the bundle and set themselves up as nodes."""
