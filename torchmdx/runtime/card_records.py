"""What was measured on cards of this machine: kept in the cache, by the name of the card."""

from __future__ import annotations

import json
import os

from torchmdx.runtime.compile_cache import CacheError, readable_directory, usable_directory
from torchmdx.runtime.files import write_whole

FILE = "cards.json"
# For a process that tests a card: clusters of 8 blocks, as if they had been recorded.
ON_TRIAL = "TORCHMDX_CLUSTERS_ON_TRIAL"


def clusters_of(card: str, multiprocessors: int) -> int:
    """Clusters of 8 blocks that were seen to run at the same time on such a card; 0 if none were."""
    if given := os.environ.get(ON_TRIAL):
        return int(given)
    found = _read().get(card, {})
    return found["clusters"] if found.get("multiprocessors") == multiprocessors else 0


def keep_clusters(card: str, multiprocessors: int, clusters: int) -> str:
    """Records them; returns the path of the file. Raises CacheError or OSError."""
    path = usable_directory() / FILE
    records = _read() | {card: {"multiprocessors": multiprocessors, "clusters": clusters}}
    write_whole(path, json.dumps(records, indent=1).encode())
    return str(path)


def _read() -> dict[str, dict[str, int]]:
    """All records; none where the file is missing or damaged, which costs time and nothing else."""
    try:
        found = json.loads((readable_directory() / FILE).read_text())
        return {
            str(card): {key: int(record[key]) for key in ("multiprocessors", "clusters")}
            for card, record in found.items()
        }
    except (CacheError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
