from typing import final

@final
class UnsyncedFins: ...
