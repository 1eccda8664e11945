"""Commands of pyqctl, the operator's command line for pyqd and nsqd. Source: docs/tools/pyqctl.md."""
