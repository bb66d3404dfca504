"""What we use of Hydra beyond its documented API, with the reason for each.

All else is documented: `initialize_config_dir`, `compose`, `ConfigStore.store`, plug-ins of the
search path and the parser of overrides. `pyproject.toml` holds Hydra to one minor version because
of this module; another version has to be tried against it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra._internal.config_repository import IConfigRepository
    from hydra.core.override_parser.overrides_parser import OverridesParser


class GroupLists:
    """Lists config groups and their members: files, and nodes of the `ConfigStore`.

    Private part: the attribute `repository` of Hydra's loader. The public API has no such lists,
    and those of the loader copy all that Hydra has stored for each call, which takes 10 ms.
    """

    def __init__(self, repository: IConfigRepository) -> None:
        self._repository = repository

    def groups(self, parent: str = "") -> list[str]:
        """List the groups in a group; by default those at the top."""
        from hydra.core.object_type import ObjectType

        return self._repository.get_group_options(parent, ObjectType.GROUP)

    def members(self, group: str) -> list[str]:
        """List the members of a group."""
        return self._repository.get_group_options(group)


@contextmanager
def hydra_for(
    main_folder: Path, user_folders: Sequence[Path], groups: Collection[str]
) -> Iterator[GroupLists]:
    """Initialize Hydra for folders of config groups, and restore its former state at the end.

    Private parts: the attribute `hydra` of `GlobalHydra`, since Hydra refuses to be initialized
    within another initialization, as in a plan within a plan or in a caller that uses Hydra; and
    the dictionary of the `ConfigStore`, since a stored node cannot be removed. Hydra would merge a
    node that another `ConfigGroups` has stored with a file of the user's of the same name.

    Args:
        main_folder: the folder of `config.yaml`.
        user_folders: folders that are searched before it, the first one first.
        groups: the config groups whose stored nodes are set aside.

    Yields:
        The lists of groups and their members.
    """
    from hydra import initialize_config_dir
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    pending = [folder.as_uri() for folder in reversed(user_folders)]

    class UserFolders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            while pending:  # Plugins cannot be unregistered, so each adds its folders only once.
                search_path.prepend(provider="--config-dir", path=pending.pop(0))

    Plugins.instance().register(UserFolders)
    outer_hydra = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    store = ConfigStore.instance()
    outer_nodes = store.repo
    store.repo = {name: node for name, node in outer_nodes.items() if name not in groups}
    try:
        with initialize_config_dir(str(main_folder), version_base="1.3"):
            loader: Any = GlobalHydra.instance().config_loader()
            yield GroupLists(loader.repository)
    finally:
        store.repo = outer_nodes
        GlobalHydra.instance().hydra = outer_hydra


def override_parser(
    allowed: Collection[str], others: Mapping[str, Callable[..., Any]]
) -> OverridesParser:
    """Return Hydra's parser of overrides with a choice of the grammar's functions.

    Private part: the class of a table of functions. The public `OverridesParser.create` knows all
    of Hydra's functions, and what some of them return cannot be told from typed values:
    `shuffle([1,2])` is a list.

    Args:
        allowed: the functions that stay as Hydra has them.
        others: functions that take the place of others of the grammar, by name.
    """
    from hydra._internal.grammar.functions import Functions
    from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions

    hydras = create_functions().functions
    table = Functions()
    for name in allowed:
        table.register(name, hydras[name])
    for name, function in others.items():
        table.register(name, function)
    return OverridesParser(table)
