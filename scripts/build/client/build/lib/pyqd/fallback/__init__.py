"""Pure-Python forms of compiled code, for a copy of the Python modules without the compiled ones.

Executors of Spark get such a copy, as a zip cannot hold compiled modules. A caller imports the compiled form and falls
back on ImportError; both forms take the same arguments and return the same values:

    checksums        pyqd.hot.primitives.crc32c
    client_frames    pyqd.hot.wire.client_frames
    columns          pyqd.hot.wire.columns
    mpub             pyqd.hot.wire.mpub

`records` decodes the same bytes as `columns`, one record at a time, and is also for programs that read a topic's log.
`trace_rows` makes lists or Arrow record batches of decoded trace events.
"""
