"""The shell of both services: configuration files, logs, health and metrics endpoint, exit codes."""
