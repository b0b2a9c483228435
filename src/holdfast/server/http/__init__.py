"""What a request passes before it is routed."""
