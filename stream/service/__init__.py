"""The shell that both services share: configuration files, logs, health and metrics endpoint, exit codes."""
