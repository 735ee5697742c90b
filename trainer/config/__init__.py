"""What a run is: dataclasses, YAML, dotted overrides. Imports no torch: planners and checks read it in milliseconds."""
