"""Words in clusters against their formula, written out one word at a time."""

from __future__ import annotations

import pytest
import torch

from weft.nn.adaptive import ClusteredTable, ClusteredWords, Clusters

CLUSTERS = Clusters(vocabulary=20, width=8, embedding_width=12, cutoffs=(5, 9, 14), shrink=2)


@pytest.mark.parametrize("shared", [True, False])
def test_vectors_and_log_probabilities_by_their_formula(shared: bool) -> None:
    torch.manual_seed(0)
    table, head = ClusteredTable(CLUSTERS).double(), ClusteredWords(CLUSTERS, shared_maps=shared).double()
    for parameter in (*table.parameters(), *head.parameters()):
        torch.nn.init.normal_(parameter)
    x, tokens = torch.randn(6, 8, dtype=torch.float64), torch.arange(20)
    vectors, scores = table(tokens), head(x, table)
    assert vectors.shape == (20, 8) and scores.shape == (6, 20)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(6, dtype=torch.float64))
    for word in range(20):
        number = sum(word >= cutoff for cutoff in CLUSTERS.cutoffs)
        begin = (0, *CLUSTERS.cutoffs)[number]
        weight = table.weight if not number else table.tails[str(number)].weight
        assert weight.shape[1] == 12 // 2**number
        torch.testing.assert_close(vectors[word], table.maps[str(number)] @ weight[word - begin])
        maps = [head.maps[str(n)] if n == 0 or not shared else table.maps[str(n)] for n in range(4)]
        for row in range(6):
            common = [maps[0].T @ x[row] @ v + b for v, b in zip(table.weight, head.bias, strict=True)]
            common += [maps[0].T @ x[row] @ v + b for v, b in zip(head.cluster_weight, head.cluster_bias, strict=True)]
            first = torch.stack(common).log_softmax(0)
            expected = first[word] if not number else first[5 + number - 1]
            if number:
                biases = head.biases[str(number)]
                inside = [maps[number].T @ x[row] @ v + b for v, b in zip(weight, biases, strict=True)]
                expected = expected + torch.stack(inside).log_softmax(0)[word - begin]
            torch.testing.assert_close(scores[row, word], expected)
