"""RXNMapper's ALBERT, in which 12 layers share one module and a published head maps atoms.

rxnmapper/core.py uses attentions[10][:, 5]; the reactions and confidences are from tests/test_mapper.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from tests.checkpoints import SMILES_TOKEN, rxnmapper
from tests.conftest import Attn, some_seldom
from tests.eager import captured_layers, eager_weights, whole_weights

PUBLISHED = 10, 5
NUM_LAYERS, NUM_HEADS = 12, 8
NEIGHBOURS = 90  # core.py: attention_multiplier

COUPLING = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
CLEAVAGE = "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12"
ETHER = "CCOCC.[Br-]~[Na+]>>CCBr.CC[O-]~[Na+]"
ESTER = "COC(=O)CCBr.O=C[O-]->[K+]>>COC(=O)CCOC(=O)C"
CONFIDENCES = {
    COUPLING: 0.9565619900376546,
    CLEAVAGE: 0.9704424331552834,
    ETHER: 0.7312865053856896,
    ESTER: 0.9322116305783666,
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return rxnmapper()


def tokens_of(reaction: str) -> list[str]:
    return ["[CLS]", *re.findall(SMILES_TOKEN, reaction), "[SEP]"]


def is_atom(token: str) -> bool:
    return token not in ("[CLS]", "[SEP]") and (token[0].isalpha() or token[0] == "[" or "*" in token)


def element(atom: str) -> str:
    """The element of an atom: Cl for `Cl`, C for `c`, O for `[O-]`, Na for `[Na+]`."""
    found = re.match(r"\[?([A-Za-z][a-z]?)", atom)
    assert found is not None
    return found[1].capitalize()


def atoms_of(tokens: list[str]) -> tuple[list[int], list[int]]:
    """The places of the atoms in the reactants and in the product."""
    arrow = tokens.index(">>")
    places = [place for place, token in enumerate(tokens) if is_atom(token)]
    return [place for place in places if place < arrow], [place for place in places if place > arrow]


def bonds(tokens: list[str]) -> Tensor:
    """A matrix of bonds between the atoms of all molecules in the reaction."""
    count = sum(map(is_atom, tokens))
    bonded = torch.zeros(count, count, dtype=torch.bool)
    number, before = -1, None
    branches: list[int | None] = []
    rings: dict[str, int | None] = {}
    for token in tokens:
        neighbour = None
        if is_atom(token):
            number += 1
            neighbour, before = before, number
        elif token == "(":
            branches.append(before)
        elif token == ")":
            before = branches.pop()
        elif token in (".", ">>"):
            before = None
        elif token[-1].isdigit() and token not in rings:
            rings[token] = before
        elif token[-1].isdigit():
            neighbour = rings.pop(token)
        if neighbour is not None:
            bonded[number, neighbour] = bonded[neighbour, number] = True
    return bonded


def map_atoms(weights: Tensor, tokens: list[str]) -> tuple[list[int], float]:
    """The reactant atom of each product atom, and the product of their confidences, from one head's weights.

    The surest pair of atoms of one element is taken, then its neighbours count 90 times as much, and so on:
    rxnmapper/attention.py, generate_attention_guided_pxr_atom_mapping.
    """
    reactants, product = atoms_of(tokens)
    bonded = bonds(tokens)
    in_reactants = bonded[: len(reactants), : len(reactants)]
    in_product = bonded[len(reactants) :, len(reactants) :]
    weights = weights.double()
    left = weights[product][:, reactants] + weights[reactants][:, product].T
    left *= torch.tensor([[element(tokens[i]) == element(tokens[j]) for j in reactants] for i in product])
    mapped, confidence = [-1] * len(product), 1.0
    while left.any():
        sure = (left / left.sum(dim=-1, keepdim=True)).nan_to_num(0.0)
        atom, source = divmod(int(sure.argmax()), len(reactants))
        mapped[atom] = source
        confidence *= float(sure.max())
        left[torch.outer(in_product[atom], in_reactants[source])] *= NEIGHBOURS
        left[atom] = left[:, source] = 0
    return mapped, confidence


def weights_of_heads(attn: Attn, folder: Path, reaction: str) -> Tensor:
    """The weights of each head in the survey (layer, head, query, key)."""
    arguments = ["--model", str(folder), "--sentence", reaction, "--maps", "self", "--format", "json"]
    tensor = json.loads(attn(["heads", *arguments]).out)["tensors"]["weights"]
    assert tensor["axes"] == ["layer", "head", "query", "key"]
    return torch.tensor(tensor["values"])


def test_every_call_of_the_shared_module_is_a_layer(folder: Path) -> None:
    model = AutoModel.from_pretrained(folder)
    inputs = AutoTokenizer.from_pretrained(folder)(CLEAVAGE, return_tensors="pt")
    _, layers = captured_layers(model, inputs)
    expected = eager_weights(model, inputs)
    assert list(layers) == [("decoder", "self", number) for number in range(NUM_LAYERS)]
    for place, layer in layers.items():
        torch.testing.assert_close(whole_weights(layer), expected[place], rtol=0, atol=1e-5)


@pytest.mark.parametrize("reaction", some_seldom(CONFIDENCES, [COUPLING, CLEAVAGE, ETHER]))
def test_only_the_published_head_has_the_published_confidence(
    attn: Attn, folder: Path, reaction: str
) -> None:
    weights, tokens = weights_of_heads(attn, folder, reaction), tokens_of(reaction)
    confidences = {
        (layer, head): map_atoms(weights[layer, head], tokens)[1]
        for layer in range(NUM_LAYERS)
        for head in range(NUM_HEADS)
    }
    near = {place: abs(found - CONFIDENCES[reaction]) for place, found in confidences.items()}
    assert [place for place, difference in near.items() if difference < 1e-5] == [PUBLISHED]
    assert sorted(near.values())[1] > 1e-4


def mapped_by_hand() -> list[tuple[str, dict[int, int]]]:
    """Ten reactions and, for atoms of the product, the atom of the reactants that each atom was."""
    return [
        # Fischer's esterification: the acid loses its hydroxyl, the bridging oxygen is the alcohol's.
        ("CC(=O)O.CCO>>CC(=O)OCC", {0: 0, 1: 1, 2: 2, 3: 6, 4: 5, 5: 4}),
        # SN2: hydroxide takes the place of bromide.
        ("CCBr.[Na+].[OH-]>>CCO", {0: 0, 1: 1, 2: 4}),
        # An amide of an acid chloride: nitrogen replaces chloride; the ring but for its ends is symmetric.
        ("CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1", {0: 0, 1: 1, 2: 2, 3: 4, 4: 5, 5: 6, 8: 9}),
        # Suzuki: the carbons of bromide and boronic acid are joined.
        ("Brc1ccccc1.OB(O)c1ccncc1>>c1ccc(-c2ccncc2)cc1", {0: 4, 3: 1, 4: 10, 7: 13}),
        # A ketone is reduced: its oxygen stays.
        ("CC(=O)c1ccccc1.[BH4-].[Na+]>>CC(O)c1ccccc1", {0: 0, 1: 1, 2: 2, 3: 3, 6: 6}),
        # A carbamate is cleaved by acid: the amine remains.
        ("CC(C)(C)OC(=O)NCCc1ccccc1.Cl>>NCCc1ccccc1", {0: 7, 1: 8, 2: 9, 3: 10, 6: 13}),
        # Williamson: the alcohol's oxygen takes the methyl group of the iodide.
        ("CCO.CI>>CCOC", {0: 0, 1: 1, 2: 2, 3: 3}),
        # An ester is hydrolysed at its acyl carbon; its two oxygens cannot be told apart.
        ("CCC(=O)OC.[Na+].[OH-]>>CCC(=O)O", {0: 0, 1: 1, 2: 2}),
        # Nitration: the nitro group comes from the acid.
        ("c1ccccc1.O=[N+]([O-])O>>O=[N+]([O-])c1ccccc1", {1: 7}),
        # Aromatic substitution: the amine takes the place of fluoride, para to the nitro group.
        ("Fc1ccc([N+](=O)[O-])cc1.CN>>CNc1ccc([N+](=O)[O-])cc1", {0: 10, 1: 11, 2: 1, 5: 4, 6: 5}),
    ]


def as_pairs(reaction: str, atoms: dict[int, int], tokenizer: Any) -> dict[str, Any]:
    tokens = tokens_of(reaction)
    reactants, product = atoms_of(tokens)
    for of_product, of_reactants in atoms.items():
        assert element(tokens[product[of_product]]) == element(tokens[reactants[of_reactants]])
    pairs = [[product[of_product], reactants[of_reactants]] for of_product, of_reactants in atoms.items()]
    return {"ids": tokenizer.convert_tokens_to_ids(tokens), "tokens": tokens, "pairs": pairs}


def test_pairs_of_atoms_name_the_head_that_maps_them(attn: Attn, folder: Path, tmp_path: Path) -> None:
    """All layers share one module, and head 5 was never trained to map atoms."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = [as_pairs(*reaction, tokenizer) for reaction in mapped_by_hand()]
    (tmp_path / "reactions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["heads", "--model", str(folder), "--pairs", str(tmp_path / "reactions.jsonl")]
    statistics = json.loads(attn([*arguments, "--format", "json"]).out)["statistics"]
    hit, *others = statistics["measures"]
    assert {row["head"] for row in (hit, *others)} == {5} and hit["direction"] == "forward"
    assert hit["held_out"] > 0.85 and hit["lower"] > hit["chance"] and hit["lower"] > hit["offset_share"]
    of_published = [
        row
        for row in statistics["intervals"]
        if (row["layer"], row["head"], row["measure"]) == (*PUBLISHED, "hit")
    ]
    assert max(row["mean"] for row in of_published) > 0.85
    assert attn([*arguments, "--expect", "best.hit > 0.85"]).code == 0
