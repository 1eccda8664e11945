"""Parts that Celery's transport and Dramatiq's broker share: names, due times, inboxes."""
