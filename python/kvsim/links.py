"""HDF5 files that lead into other files (docs/security.md)."""

import h5py


class LinkedElsewhere(ValueError):
    """`str` says what leads there."""


def refuse_links(group: h5py.Group, seen: set | None = None) -> None:
    """Raises LinkedElsewhere where a link, a virtual dataset or external storage leads elsewhere."""
    seen = set() if seen is None else seen
    for name in group:
        path = f"{group.name.rstrip('/')}/{name}"
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.SoftLink):
            continue   # stays in the file; what it passes is looked at where it stands
        item = None if isinstance(link, h5py.ExternalLink) else group[name]
        if item is None or isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise LinkedElsewhere(f"{path[1:]}: not allowed: found a link to another file, expected "
                                  "an object of this file")
        if isinstance(item, h5py.Group) and (address := h5py.h5o.get_info(item.id).addr) not in seen:
            seen.add(address)
            refuse_links(item, seen)
