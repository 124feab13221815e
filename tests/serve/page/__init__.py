"""A package, so that pytest closes the browser of these tests behind the last of them."""
