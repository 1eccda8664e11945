"""The programs: flags, wiring, signals, order of stopping."""
