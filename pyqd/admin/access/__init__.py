"""Access to the web admin: users, logins, roles by topic pattern, and headers that protect browsers."""
