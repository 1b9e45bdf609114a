"""Types of arrays, and arrays that grow."""
