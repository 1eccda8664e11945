import sys
from functools import partial

import django
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from pyqd.client import Consumer, Producer

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "orders.db"}},
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
)
django.setup()

# One for the process: threads share it, and a forked server process connects for itself.
producer = Producer("127.0.0.1:4150", codec="json")


def create_order(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (customer) VALUES (%s) RETURNING id", [request.POST["customer"]])
            number = cursor.fetchone()[0]
        transaction.on_commit(partial(producer.publish, "orders", {"number": number}))
    return JsonResponse({"number": number}, status=202)


urlpatterns = [path("orders", create_order)]


class Command(BaseCommand):
    """In a project this class is in management/commands/consume_orders.py."""

    def handle(self, *_, **__):
        consumer = Consumer("orders", "email", nsqd="127.0.0.1:4150", codec="json")

        @consumer.handler(concurrency=4)
        def send_mail(message):
            try:
                with connection.cursor() as cursor:
                    cursor.execute("UPDATE orders SET mailed = 1 WHERE id = %s", [message.value["number"]])
            finally:
                connection.close()

        sys.exit(consumer.run())


if __name__ == "__main__":
    Command().handle()
