"""The scripts with which shells ask vfioctl for completions, to be installed for all users. May not do input or output.

They are typer's, as `vfioctl --show-completion` prints them; a test compares them."""

from __future__ import annotations

from collections.abc import Mapping

_BASH = r"""_vfioctl_completion() {
    local IFS=$'
'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \
                   COMP_CWORD=$COMP_CWORD \
                   _VFIOCTL_COMPLETE=complete_bash $1 ) )
    return 0
}

complete -o default -F _vfioctl_completion vfioctl"""
_ZSH = r"""#compdef vfioctl

_vfioctl_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _VFIOCTL_COMPLETE=complete_zsh vfioctl)
}

compdef _vfioctl_completion vfioctl"""
_FISH = (
    "complete --command vfioctl --no-files"
    ' --arguments "(env _VFIOCTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args'
    ' _TYPER_COMPLETE_ARGS=(commandline -cp) vfioctl)"'
    ' --condition "env _VFIOCTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args'
    ' _TYPER_COMPLETE_ARGS=(commandline -cp) vfioctl"'
)
SCRIPTS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""The script of each shell, without a newline at its end."""
