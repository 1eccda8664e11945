"""Who may use the web admin, and for what: users, logins, roles by topic, and headers that protect browsers."""
