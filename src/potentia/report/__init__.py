"""Tables and pictures from result rows."""
