"""Tasks, each with its lesson, loss, floors and figures."""
