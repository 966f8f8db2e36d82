"""`npuc targets` and `npuc operators`: lists of what is available; `npuc completion`: names in a shell."""

from __future__ import annotations

import click

from npuc.cli.options import json_option, target_option
from npuc.cli.output import answer, say


@click.command()
@json_option
def targets(as_json: bool) -> None:
    """List the targets and their machines.

    \b
    Examples:
      npuc targets
      npuc targets --json
    """
    from npuc.registry import names
    from npuc.registry import target as find
    from npuc.reports import tables

    known = {name: find(name) for name in names()}
    found = [
        {"name": name, "summary": each.summary, "machines": each.machines(), "precisions": list(each.precisions)}
        for name, each in known.items()
    ]
    answer({"status": "ok", "targets": found}, tables.targets(found), as_json)


@click.command()
@target_option
@json_option
def operators(target: str, as_json: bool) -> None:
    """List the operators a target runs.

    \b
    Examples:
      npuc operators --target easynpu
      npuc operators --target bm1684 --json
    """
    from npuc.registry import target as find
    from npuc.reports import tables

    found = find(target).operators()
    answer({"status": "ok", "target": target, "operators": found}, tables.operators(found), as_json)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    It completes commands, options, files, machines, passes, and the nodes and layers of a model or program.

    \b
    Examples:
      npuc completion bash > ~/.local/share/bash-completion/completions/npuc
      npuc completion zsh > ~/.zfunc/_npuc
      npuc completion fish > ~/.config/fish/completions/npuc.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, shell
    group = click.get_current_context().find_root().command
    say(found(group, {}, "npuc", "_NPUC_COMPLETE").source(), exact=True)
