"""Table of flags, the configuration file, and the options that change while the daemon runs."""
