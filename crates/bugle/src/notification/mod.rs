//! Notifications: outside events with a record, delivered as signals by policy (NOTIF).
