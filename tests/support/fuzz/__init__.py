"""A fuzzer of the daemon's ports: cases made from a seed, played against a real process, checks after each batch."""
