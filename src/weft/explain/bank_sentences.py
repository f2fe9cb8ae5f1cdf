"""Forty sentences with the word "bank" in two senses: what `weft look words MODEL` shows by default."""

from __future__ import annotations

RIVER = (
    "We sat on the bank of the river and watched the boats go by.",
    "The otter climbed up the muddy bank with a fish in its mouth.",
    "Willows grow along the bank where the water is slow.",
    "After the flood the bank had crumbled into the stream.",
    "They tied the canoe to a root on the far bank.",
    "Children skipped stones from the grassy bank all afternoon.",
    "The path follows the left bank as far as the old mill.",
    "A heron stood still on the bank and waited for a frog.",
    "The ferry carried us from one bank to the other.",
    "Reeds hid the nest on the bank of the lake.",
    "The current pushed the raft against the steep bank.",
    "Wild flowers covered the bank above the creek.",
    "He slipped on the wet bank and fell into the water.",
    "Fishermen stood on the bank with their long rods at dawn.",
    "The beavers had felled every tree on the eastern bank.",
    "Cattle came down to the bank to drink in the evening.",
    "The engineers raised the bank to keep the river out of the village.",
    "We camped on a sandy bank just below the rapids.",
    "Moss and ferns grew on the shaded bank of the brook.",
    "The swimmer reached the opposite bank out of breath.",
)
MONEY = (
    "She opened a savings account at the bank this morning.",
    "The bank raised its interest rates for the third time.",
    "He asked the bank for a loan to buy a house.",
    "My salary is paid into the bank at the end of the month.",
    "The bank charged me a fee for the late payment.",
    "Robbers broke into the bank and opened the safe.",
    "The manager of the bank signed the mortgage papers.",
    "You can withdraw cash at any branch of the bank.",
    "The bank closed my account without a warning.",
    "Investors lost their savings when the bank failed.",
    "She works as a teller in a bank in the city.",
    "The central bank printed more money to calm the markets.",
    "He keeps his shares in a deposit box at the bank.",
    "The bank refused to cash the check without identification.",
    "Our company borrowed two million from the bank.",
    "The bank sent a new credit card by mail.",
    "They transferred the rent from one bank to another.",
    "The auditors checked the books of the bank for fraud.",
    "A clerk at the bank counted the coins twice.",
    "The bank offers a discount on its insurance to students.",
)
LABELED = tuple((text, sense) for texts, sense in ((RIVER, "river"), (MONEY, "money")) for text in texts)
