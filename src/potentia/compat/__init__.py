"""The interfaces of other tools over chains of potentia: change the import, and a program runs as before."""
