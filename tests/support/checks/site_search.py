"""Search a built site as its search box does: lunr's BM25, with the boosts of Material for MkDocs."""

import json
import math
import re
from collections import Counter, defaultdict
from html import unescape
from pathlib import Path

K1, B = 1.2, 0.75  # lunr's
BOOSTS = {"title": 1000.0, "text": 1.0}
WORD = re.compile(r"[\s\-]+")  # what the site's index splits at
EDGES = re.compile(r"^\W+|\W+$")


def words_of(text: str) -> list[str]:
    plain = unescape(re.sub(r"<[^>]+>", " ", text)).lower()
    return [word for part in WORD.split(plain) if (word := EDGES.sub("", part))]


class SiteSearch:
    """The pages of a search index, by words."""

    def __init__(self, index: Path) -> None:
        docs = json.loads(index.read_text())["docs"]
        self.places = [doc["location"] for doc in docs]
        self.boosts = [doc.get("boost", 1) for doc in docs]
        self.counts = {field: [Counter(words_of(doc[field])) for doc in docs] for field in BOOSTS}
        self.sizes = {field: [sum(count.values()) for count in counts] for field, counts in self.counts.items()}
        self.holders: dict[str, set[int]] = defaultdict(set)
        for counts in self.counts.values():
            for row, count in enumerate(counts):
                for word in count:
                    self.holders[word].add(row)

    def pages(self, query: str) -> list[str]:
        """Return the pages that match, best first. A word also finds the words that it begins."""
        scores: Counter[int] = Counter()
        found: dict[int, set[str]] = defaultdict(set)
        wanted = words_of(query)
        for word in wanted:
            for term in [term for term in self.holders if term.startswith(word)]:
                holders = self.holders[term]
                rarity = math.log(1 + abs((len(self.places) - len(holders) + 0.5) / (len(holders) + 0.5)))
                for row in holders:
                    found[row].add(word)
                    scores[row] += rarity * sum(self._weight(field, row, term) for field in BOOSTS)
        for row in scores:
            complete = len(found[row]) == len(set(wanted))
            scores[row] *= self.boosts[row] * (1 + ("#" not in self.places[row]) + complete)
        pages = [self.places[row].split("#")[0] for row, _ in scores.most_common()]
        return list(dict.fromkeys(pages))

    def _weight(self, field: str, row: int, term: str) -> float:
        count, size = self.counts[field][row][term], self.sizes[field][row]
        mean = sum(self.sizes[field]) / len(self.places)
        return BOOSTS[field] * (K1 + 1) * count / (K1 * (1 - B + B * size / mean) + count)
