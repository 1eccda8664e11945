"""Types of columns of the trace database. Their meaning must not change: versions of the schema use them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql


class UtcTime(sa.TypeDecorator[datetime]):
    """Timestamp in UTC with microseconds; Python's values have the time zone, whatever the database keeps."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TIMESTAMP(timezone=True, precision=6))
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime())

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(timezone.utc).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.astimezone(timezone.utc) if value.tzinfo else value.replace(tzinfo=timezone.utc)


def ascii_text(chars: int) -> sa.types.TypeEngine[str]:
    """Return the type of a text in ASCII that is compared byte by byte: comparison by a language is slow."""
    return (
        sa.String(chars)
        .with_variant(postgresql.VARCHAR(chars, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(chars, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
    )


def free_text(chars: int) -> sa.types.TypeEngine[str]:
    """Return the type of a text of any characters."""
    return sa.String(chars).with_variant(
        mysql.VARCHAR(chars, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
    )


BODY: Final = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")
# Counts of bytes and rows. SQLite has one type of integers.
BIG: Final = sa.BigInteger()
