_potentia() {
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
complete -o default -F _potentia potentia
