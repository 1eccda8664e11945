import sqlite3
import sys
import threading

from pyqd.client import Consumer

consumer = Consumer("payments", "ledger", nsqd="127.0.0.1:4150", codec="json")
local = threading.local()


def database() -> sqlite3.Connection:
    if not hasattr(local, "database"):
        local.database = sqlite3.connect("ledger.db", timeout=30.0)
    return local.database


with database() as first:
    first.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
    first.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL)")


@consumer.handler(concurrency=4)
def pay(message):
    payment = message.value
    with database() as transaction:
        if transaction.execute("INSERT OR IGNORE INTO seen VALUES (?)", [message.id]).rowcount == 0:
            return
        transaction.execute(
            "INSERT INTO accounts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET cents = cents + excluded.cents",
            [payment["account"], payment["cents"]],
        )


sys.exit(consumer.run())
