"""Everything of a run that imports Ray: the engine on actors, sessions, placement, machines."""
