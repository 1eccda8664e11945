"""Traces of messages in a database: reading of the brokers' event logs, storing, and queries for a message's story.

    source        events of one broker, over HTTP
    fetcher       thread that reads them ahead of the writer
    rows          events to rows: one per published message, one per delivery with its outcome, one per other event
    schema        tables and views; migrations/ holds their versions
    stores        SQLite, PostgreSQL, MariaDB and MySQL: quick writing of many rows
    database      transactions: rows and position together
    shipper       brokers to database, with retries
    retention     removal of old rows
    story         one message by its id
    search        messages by topic, channel, time and state
    figures       counts and times of topics and channels

Needs SQLAlchemy and Alembic (`pip install pyqd[trace]`). docs/trace.md is the user's page.
"""
