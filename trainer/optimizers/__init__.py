"""Update rules, the formats of their state, and the optimizer that applies them to the parameters of a rank."""
