"""Tasks: each has its lesson, its loss, its floors and its figures."""
