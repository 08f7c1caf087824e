"""`potentia completion`: a static script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse

TEXT = "Print a script that completes commands, options and their values in a shell."
EXAMPLE = """
  potentia completion bash > ~/.local/share/bash-completion/completions/potentia
  potentia completion zsh >> ~/.zshrc
  potentia completion fish > ~/.config/fish/completions/potentia.fish"""
SHELLS = ("bash", "zsh", "fish")

_BASH = """_potentia() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words=""
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "%s" -- "$word"))
    return
  fi
  case "$command $before" in
%s
  esac
  if [ -z "$words" ] && [[ "$word" == -* ]]; then
    case "$command" in
%s
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _potentia potentia"""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell; bash and zsh share one."""
    commands = _commands(parser)
    if shell == "fish":
        return _fish(commands)
    values = [
        f'    "{name} {option}") words="{" ".join(map(str, action.choices))}" ;;'
        for name, command in commands.items()
        for action in command._actions
        if action.choices
        for option in action.option_strings or [name]
    ]
    options = [f'      {name}) words="{" ".join(_options(own))}" ;;' for name, own in commands.items()]
    text = _BASH % (" ".join(commands), "\n".join(values), "\n".join(options))
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (group,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(group.choices)


def _options(command: argparse.ArgumentParser) -> list[str]:
    return [option for option in command._option_string_actions if option.startswith("--")]


def _fish(commands: dict[str, argparse.ArgumentParser]) -> str:
    lines = [f"complete -c potentia -n __fish_use_subcommand -f -a {name}" for name in commands]
    for name, command in commands.items():
        here = f"complete -c potentia -n '__fish_seen_subcommand_from {name}'"
        for action in command._actions:
            values = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            lines += [
                f"{here} -l {option.lstrip('-')}{values}"
                for option in action.option_strings
                if option.startswith("--")
            ]
            lines += [f"{here}{values}"] if values and not action.option_strings else []
    return "\n".join(lines)
