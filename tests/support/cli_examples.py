"""The examples that every command's --help prints."""

from potentia.app.cli import _parser


def cli_examples():
    """{command: lines `potentia ...` below "example:" of its help}."""
    found = {}
    for name, parser in _parser()._subparsers._group_actions[0].choices.items():
        _, _, after = parser.format_help().partition("example:")
        # what a shell does with the output is not the parser's
        lines = [line.partition(" >")[0].strip() for line in after.splitlines()]
        found[name] = [line for line in lines if line.startswith("potentia ")]
    return found
