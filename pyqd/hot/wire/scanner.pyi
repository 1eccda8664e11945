# Called by compiled modules only.
