"""One module a command of freshet-trainer."""
