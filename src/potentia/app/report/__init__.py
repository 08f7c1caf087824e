"""Tables and images from result rows."""
