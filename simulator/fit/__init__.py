"""The model against measurements: its constants fitted to them, and how far it is from them."""
