"""The way of a request before its route: header limits, origins, body limits, and the table of routes."""
