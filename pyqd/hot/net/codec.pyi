class Codec:
    """Interface of Tls, Snappy and Deflate; its methods are called by compiled code."""
