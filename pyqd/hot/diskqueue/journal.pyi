BLOCK_SIZE: int
HEADER_SIZE: int
ENTRY_SIZE: int
FORMAT_MAGIC: int
FORMAT_VERSION: int
CHECKED_FROM: int

class CommitBuffer:
    used: int
    entry_count: int
    whole_bytes: int
    def __init__(self) -> None: ...
    def begin(self) -> None: ...
    def grow(self, capacity: int) -> None: ...
    def finish(
        self, generation: int, oldest: int, offset: int, latest_created_ns: int, commit_number: int
    ) -> memoryview: ...
    def note_durable(self) -> None: ...
